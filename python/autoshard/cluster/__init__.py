"""What a program runs on: chips, links, and where every constant about them comes from."""

from autoshard.cluster.chips import CHIPS as CHIPS
from autoshard.cluster.chips import Chip as Chip
from autoshard.cluster.chips import Constant as Constant
from autoshard.cluster.cluster import Cluster as Cluster
from autoshard.cluster.topology import Dim as Dim
from autoshard.cluster.topology import LinkKind as LinkKind

"""What programs are made of; importing a module here registers its makers."""

from fuzz.makers import contractions as contractions
from fuzz.makers import control as control
from fuzz.makers import elementwise as elementwise
from fuzz.makers import indexing as indexing
from fuzz.makers import layers as layers
from fuzz.makers import reductions as reductions
from fuzz.makers import shapes as shapes
from fuzz.makers import windows as windows

"""Random JAX programs under random plans on 8 virtual CPU devices, compared with the unsharded run.

    python test/fuzz/run.py --seeds 0:1000 --plans 4 --jobs 2 --report fuzz.jsonl    many cases
    python test/fuzz/micro_batches.py --seeds 0:1000                        in micro-batches
    python test/fuzz/minimise.py --seed 17 --plan 3                                  one, made small
    python test/fuzz/minimise.py --seed 17 --plan 3 --save clamped_update            kept for ever

What is random: ``random_programs.py`` (with ``makers/`` and ``networks.py``) and
``configurations.py``. What is run: ``programs.py``, ``styles.py``, ``cases.py``, ``comparison.py``,
in the processes of ``workers.py`` and ``worker.py``. What is made of a finding: ``shrinking.py``,
``attribution.py``, ``printing.py``, and ``past/``, which every test run repeats.

Seeds name cases of one version of these files; a case in ``past/`` is data and stays what it is.
"""

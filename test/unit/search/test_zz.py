from test_micro_batches_auto import plan
import autoshard, pytest
def test_a():
    for n in (96,192):
        p=plan(384,micro_batches=n); print(n,p.peak_bytes/1024, p.mesh)
        print(p.summary.peak_tensors if hasattr(p.summary,'peak_tensors') else [f for f in p.summary.__dataclass_fields__])
        try: 
            p=plan(384,micro_batches=n,memory_limit="20KiB")
        except autoshard.DoesNotFitError as e: print(str(e)[:1500])

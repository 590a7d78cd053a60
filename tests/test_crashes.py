"""What would end the process without a Python exception, each in a process of its own.

A death by signal shows as a negative return code; here everything must come back as an exception, or just work.
"""

from pathlib import Path

import pytest

from tests import odd_images, support

PRELUDE = """
import pathlib
import dali_pipe as dp, tf_bridge as tb
import tensorflow as tf
shards = sorted(str(p) for p in pathlib.Path({folder!r}).glob('*.tfrecord*'))
recipe = dp.crop_train(32, 'uint8')

def make(**options):
    options = {{'recipe': recipe, 'batch_size': 4, 'seed': 0, **options}}
    return tb.from_tfrecords(shards, **options)

def expect(call, *words):
    try:
        call()
    except Exception as error:
        message = f'{{type(error).__name__}}: {{error}}'
        assert all(word in message for word in words), message
        print('RAISED')
    else:
        print('NOTHING')
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    support.write_shards(tmp_path, [support.photograph(k, 48, 56) for k in range(12)], shards=2)
    return tmp_path


def survive(folder: Path, code: str, *, to_the_end: bool = False) -> str:
    """What the code prints; `to_the_end` with the interpreter's own end."""
    code = PRELUDE.format(folder=str(folder)) + code
    done = support.run_python(code) if to_the_end else support.run_forked(code, folder)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.slow
def test_a_shard_that_goes_between_construction_and_iteration(folder: Path) -> None:
    code = """
sets = [make(engine=engine) for engine in ('dali', 'tfdata')]
sets += [ds.map(lambda x, y: y) for ds in sets]
pathlib.Path(shards[1]).unlink()
for ds in sets:
    expect(lambda: list(ds), 'FileNotFoundError', shards[1])
"""
    assert survive(folder, code).count("RAISED") == 4


def test_a_shard_that_changes_between_epochs(folder: Path) -> None:
    code = """
sets = [make(engine=engine) for engine in ('dali', 'tfdata')]
for ds in sets:
    list(ds)
with open(shards[1], 'ab') as file:
    file.write(b'more')
for ds in sets:
    expect(lambda: list(ds), 'has changed since it was scanned', shards[1])
"""
    assert survive(folder, code).count("RAISED") == 2


def test_a_shard_that_goes_while_it_is_read(folder: Path) -> None:
    code = """
for engine in ('dali', 'tfdata'):
    ds = make(engine=engine, repeat=True)
    it = iter(ds)
    next(it)
    saved = [pathlib.Path(s).read_bytes() for s in shards]
    for s in shards:
        pathlib.Path(s).write_bytes(b'')
    expect(lambda: [next(it) for _ in range(40)])
    for s, b in zip(shards, saved):
        pathlib.Path(s).write_bytes(b)
"""
    assert survive(folder, code, to_the_end=True).count("RAISED") == 2


def test_gpu_where_there_is_none(folder: Path) -> None:
    code = """
import dali_pipe.device
dali_pipe.device.dali_gpu_count = lambda: 0
expect(lambda: make(device='gpu'), 'DeviceUnavailableError', 'needs a GPU')
"""
    assert survive(folder, code).split() == ["RAISED"]


def test_features_that_crash_or_garble_the_native_reader(tmp_path: Path) -> None:
    """The bad record is in the middle: looking at a shard's first record would not find it."""
    photograph = support.photograph(0, 48, 48)
    cases: list[tuple[dict[str, support.Value], list[str]]] = [
        ({"image": 7, "label": 1}, ["must be bytes", "int64"]),
        ({"image": b"", "label": 1}, ["must hold one image"]),
        ({"image": [], "label": 1}, ["must hold one image"]),
        ({"image": [b"a", b"b"], "label": 1}, ["must hold one image"]),
        ({"image": photograph}, ["no feature 'label'", "'image'"]),
        ({"picture": photograph, "label": 1}, ["no feature 'image'", "'label', 'picture'"]),
        ({"image": photograph, "label": 1.5}, ["must be int64", "float"]),
        ({"image": photograph, "label": [1, 2]}, ["must hold one label", "2"]),
        ({"image": photograph, "label": b"cat"}, ["must be int64", "bytes"]),
    ]
    good = support.example({"image": photograph, "label": 0})
    code = ""
    for number, (features, words) in enumerate(cases):
        shard = support.write_shard(tmp_path / f"{number}.tfrecord", [good, good, support.example(features), good])
        place = [shard.name, f"byte {2 * (len(good) + 16)}"]
        code += f"shards = [{str(shard)!r}]\nexpect(make, 'RecordError', *{place + words!r})\n"
    assert survive(tmp_path, code).split() == ["RAISED"] * len(cases)


def test_an_undecodable_image_is_an_exception_and_the_data_set_lives_on(folder: Path) -> None:
    """Cut short, it is refused before DALI sees it; sound from outside, it is named in the middle of the epoch."""
    images = [support.photograph(k, 48, 56) for k in range(12)]
    table = images[5].index(b"\xff\xdb")  # a quantization table, which no decoder can do without
    length = int.from_bytes(images[5][table + 2 : table + 4], "big")
    images[5] = images[5][:table] + images[5][table + 2 + length :]
    cut = [*images[:5], images[4][:500], *images[6:]]
    for name, kind in (("tables", images), ("cut", cut)):
        support.write_shards(folder / name, kind, shards=2)
    code = """
for engine in ('dali', 'tfdata'):
    for kind in ('tables', 'cut'):
        shards[:] = sorted(str(p) for p in (pathlib.Path(FOLDER) / kind).iterdir())
        expect(lambda: list(make(engine=engine)), 'record 5 of its split', shards[0], 'record at byte')
        records = dp.from_files(shards).exclude([5])
        whole = tb.from_records(records, recipe=recipe, batch_size=4, engine=engine)
        assert len(list(whole)) == 2
"""
    code = code.replace("FOLDER", repr(str(folder)))
    assert survive(folder, code).count("RAISED") == 4


def test_a_cut_image_is_refused_before_dali_meets_it_in_a_batch(folder: Path) -> None:
    images = [support.photograph(k, 200, 300) for k in range(64)]
    for k in (3, 17, 40):
        images[k] = images[k][: len(images[k]) // 2]
    support.write_shards(folder / "many", images, shards=2)
    code = """
shards[:] = sorted(str(p) for p in (pathlib.Path(FOLDER) / 'many').iterdir())
expect(lambda: list(make(engine='dali', batch_size=32)), 'RecordError', 'record 3 of its split', 'on_error="skip"')
rest = make(engine='dali', batch_size=32, drop_remainder=False, on_error='skip', max_bad=0.1)
assert sum(len(y) for _, y in rest) == 61
"""
    assert "RAISED" in survive(folder, code.replace("FOLDER", repr(str(folder))))


def _with_components(image: bytes, count: int) -> bytes:
    """Whole from outside, with a number of colour components that DALI's parser has no name for."""
    frame = image.index(b"\xff\xc0")
    return image[: frame + 9] + bytes([count]) + image[frame + 10 :]


def test_a_header_that_dali_cannot_parse_fails_its_batch_alone(folder: Path) -> None:
    """Of batches of 32 with one such image, half or more would take the process down in DALI's decoder."""
    images = [support.photograph(k, 48, 56) for k in range(64)]
    images[40] = _with_components(images[40], 2)
    support.write_shards(folder / "many", images, shards=2)
    code = """
shards[:] = sorted(str(p) for p in (pathlib.Path(FOLDER) / 'many').iterdir())
for recipe in (dp.crop_train(32, 'uint8'), dp.Recipe((dp.Resize(32),), 'uint8')):
    for seed in range(5):
        ds = make(engine='dali', batch_size=32, recipe=recipe, seed=seed, shuffle=True, num_threads=2)
        expect(lambda: list(ds), 'record 40 of its split', shards[1], 'DALI cannot decode the image')
"""
    assert survive(folder, code.replace("FOLDER", repr(str(folder)))).count("RAISED") == 10


def test_a_window_outside_its_image_fails_its_batch_alone(folder: Path) -> None:
    """As where a shard has become another while it was read: its images are smaller than the scan found them."""
    images = [support.photograph(k, 48, 56) for k in range(64)]
    images[40] = support.photograph(40, 20, 20)
    support.write_shards(folder / "many", images, shards=2)
    code = """
import dataclasses
shards[:] = sorted(str(p) for p in (pathlib.Path(FOLDER) / 'many').iterdir())
records = dp.from_files(shards)
table = records.table.copy()
table['height'], table['width'] = 48, 56
records = dataclasses.replace(records, table=table)
for seed in range(5):
    ds = tb.from_records(records, recipe=recipe, engine='dali', batch_size=32, seed=seed, num_threads=2)
    expect(lambda: list(ds), 'dali failed, though it can decode each of the images')
"""
    assert survive(folder, code.replace("FOLDER", repr(str(folder)))).count("RAISED") == 5


@pytest.mark.slow
def test_batches_of_jpegs_damaged_at_random_are_exceptions(folder: Path) -> None:
    """Any bytes of the header overwritten, cut out or inserted: a batch fails or is decoded, a thousand times over."""
    code = """
import random
import numpy as np
from dali_pipe import image_header, pipeline, plan
from tests import support
shape = dp.Recipe((dp.CenterCrop(8),), 'uint8')
images = [support.photograph(k, 48, 56, progressive=k % 4 == 0) for k in range(16)]
ticket = np.zeros(plan.FIRST_PARAMETER + shape.lanes, np.int64)
ticket[plan.KEEP], ticket[-2:] = 1, 8

def damaged(image):
    data, end = bytearray(image), image.index(b'\\xff\\xda') + 12
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(2, end)
        data[at : at + rng.choice([0, 1, 1, 30])] = rng.randbytes(rng.choice([0, 1, 1, 2]))
    return bytes(data)

def scanned(image):
    try:
        return image_header.read_header(image, 0, len(image)).whole
    except image_header.UnknownImage:
        return False

rng, failed = random.Random(0), 0
for _ in range(1000):
    bad = [damaged(rng.choice(images)) for _ in range(4)]
    batch = [image for image in bad if scanned(image)] + images * 2
    rng.shuffle(batch)
    pipe = pipeline.build(pipeline.memory_feed, shape, batch_size=len(batch), num_threads=2)
    pipe.feed_input(pipeline.ENCODED, [np.frombuffer(image, np.uint8) for image in batch])
    pipe.feed_input(pipeline.INPUT, [ticket] * len(batch))
    try:
        pipe.run()
    except RuntimeError:
        failed += 1
print('FAILED', failed)
"""
    assert int(survive(folder, code).split()[-1]) > 500


@pytest.mark.slow
def test_bad_images_never_reach_dali_under_a_policy(folder: Path) -> None:
    images = [support.photograph(k, 200, 300) for k in range(4)]
    bad = [odd_images.IMAGES[name] for name in ("ff00_between_segments", "truncated_half", "gif")]
    support.write_shards(folder, (images + bad) * 10, shards=2)
    code = """
for policy, count in (('skip', 40), ('repair', 60)):
    ds = make(engine='dali', batch_size=32, on_error=policy, max_bad=0.5, drop_remainder=False)
    for _ in range(3):
        assert sum(len(y) for _, y in ds) == count
print('ALIVE')
"""
    assert "ALIVE" in survive(folder, code, to_the_end=True)


def test_a_multi_device_iterator_over_it_can_be_torn_down(folder: Path) -> None:
    code = """
cpu = tf.config.list_physical_devices('CPU')[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
for engine in ('dali', 'tfdata'):
    for strategy in (tf.distribute.OneDeviceStrategy('/cpu:0'), tf.distribute.MirroredStrategy(['/cpu:0', '/cpu:1'])):
        ds = make(engine=engine)
        for _ in range(2):
            it = iter(strategy.experimental_distribute_dataset(ds))
            next(it)
            del it
print('ALIVE')
"""
    assert "ALIVE" in survive(folder, code)


# What a GPU runs; on the CPU, where data sets do without the plugin, it has to be asked for.
PLUGIN = """
from tf_bridge.dali_engine import DALIEngine
engine = DALIEngine(make(engine='dali')._source, 'cpu', 2)
"""


def test_the_plugin_gets_no_pipeline_that_cannot_be_built(folder: Path) -> None:
    """It would abort the process when the iterator is made."""
    code = f"""{PLUGIN}
for shard in shards:
    pathlib.Path(shard).unlink()
expect(lambda: list(engine.epoch(0)), 'RuntimeError', 'Could not open file')
"""
    assert survive(folder, code).split() == ["RAISED"]


def test_a_multi_device_iterator_over_the_plugin_s_data_can_be_torn_down(folder: Path) -> None:
    """With the plugin's own options, the end of the second or third one that has handed out a batch is a SIGSEGV."""
    code = f"""
cpu = tf.config.list_physical_devices('CPU')[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
{PLUGIN}
from tensorflow.python.data.ops.multi_device_iterator_ops import OwnedMultiDeviceIterator
for _ in range(10):
    it = OwnedMultiDeviceIterator(engine.epoch(0), devices=['/cpu:0', '/cpu:1'], source_device='/cpu:0')
    it.get_next()
    del it
print('ALIVE')
"""
    assert "ALIVE" in survive(folder, code)


def test_a_shard_that_is_cut_while_the_plugin_is_fed(folder: Path) -> None:
    code = f"""{PLUGIN}
import dataclasses
source = make(engine='dali', shuffle='exact', batch_size=1)._source
source = dataclasses.replace(source, plan=dataclasses.replace(source.plan, max_segments=4))
it = iter(DALIEngine(source, 'cpu', 2).epoch(0))
next(it)
for shard in shards:
    pathlib.Path(shard).write_bytes(b'')
expect(lambda: list(it), 'has changed since it was scanned')
"""
    assert survive(folder, code).split() == ["RAISED"]


def test_fit_under_a_one_device_strategy(folder: Path) -> None:
    code = """
import keras
with tf.distribute.OneDeviceStrategy('/cpu:0').scope():
    model = tb.resnet18(12, recipe=recipe, width=16)
    model.compile('sgd', 'sparse_categorical_crossentropy')
model.fit(make(), epochs=2, verbose=0, shuffle=False)
print('ALIVE')
"""
    assert "ALIVE" in survive(folder, code)


def test_iterators_dropped_in_the_middle_and_at_exit(folder: Path) -> None:
    code = """
kept = []
for engine in ('dali', 'tfdata'):
    ds = make(engine=engine)
    for _ in range(5):
        it = iter(ds)
        next(it)
        kept.append(it)
    del kept[:3]
print('ALIVE')
"""
    assert "ALIVE" in survive(folder, code, to_the_end=True)

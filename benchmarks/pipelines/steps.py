"""What the pipelines that are not ours have in common: the augmentation of the two recipes, as tf.image does it."""

import tensorflow as tf

from benchmarks.case import Case, SkipError

# Grey levels: ImageNet's statistics, as `dali_pipe.IMAGENET_MEAN` and `_STD` scaled to 0-255.
MEAN = tf.constant([0.485, 0.456, 0.406]) * 255
STD = tf.constant([0.229, 0.224, 0.225]) * 255
SHUFFLE_BUFFER = 1000  # records; what the questions and most tutorials use


def parse(record: tf.Tensor, case: Case) -> tuple[tf.Tensor, tf.Tensor]:
    """The encoded image and the label of a serialized Example."""
    image, label = case.keys
    features = {image: tf.io.FixedLenFeature([], tf.string), label: tf.io.FixedLenFeature([], tf.int64)}
    example = tf.io.parse_single_example(record, features)
    return example[image], example[label] - case.records.schema.label_offset


def augment(image: tf.Tensor, case: Case) -> tf.Tensor:
    """The recipe on a whole decoded image, uint8 or float32 grey levels."""
    if case.recipe == "crop_train":
        return tf.image.random_crop(image, (case.size, case.size, 3))
    window = resized_window(tf.shape(image))
    return flip_resized(tf.slice(image, [window[0], window[1], 0], [window[2], window[3], 3]), case)


def random_window(shape: tf.Tensor, case: Case) -> tf.Tensor:
    """The window `(y, x, height, width)` of the recipe's random crop in an image of a shape."""
    if case.recipe == "imagenet_train":
        return resized_window(shape)
    free = shape[:2] - case.size + 1
    start = tf.cast(tf.random.uniform([2]) * tf.cast(free, tf.float32), tf.int32)
    return tf.concat([start, [case.size, case.size]], 0)


def resized_window(shape: tf.Tensor) -> tf.Tensor:
    """The window of a random resized crop: 8 to 100 % of the area, aspect 3/4 to 4/3."""
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        shape,
        tf.zeros((1, 0, 4)),
        area_range=(0.08, 1.0),
        aspect_ratio_range=(3 / 4, 4 / 3),
        min_object_covered=0.0,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], size[:2]], 0)


def flip_resized(window: tf.Tensor, case: Case) -> tf.Tensor:
    """A window resized to the crop and flipped at random: float32 grey levels, or uint8 if the case wants them."""
    resized = tf.image.resize(window, (case.size, case.size))
    flipped = tf.image.random_flip_left_right(resized)
    return tf.cast(flipped + 0.5, tf.uint8) if case.dtype == "uint8" else flipped


def normalize(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Rescale and z-score in one step."""
    return (tf.cast(images, tf.float32) - MEAN) / STD, labels


def need_float(case: Case, why: str) -> None:
    """Skip a case that asks a pipeline for uint8 which has none."""
    if case.dtype != "float32":
        raise SkipError(f"gives float32 only: {why}")

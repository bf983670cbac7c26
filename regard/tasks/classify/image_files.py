"""Labelled images in files: a folder per class, tables with the paths of images, arrays, and synthetic scenes."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from regard.data.cache import content_hash
from regard.data.files import COLUMNS, Record, expand, hash_files, rows, suffix
from regard.data.splits.hashed import file_of, fractions
from regard.data.splits.selected import selected_split
from regard.data.splits.substrings import CONTAINING
from regard.data.targets import TARGETS
from regard.errors import UserError
from regard.image.arrays import is_array_file, label_file, read_arrays
from regard.image.read import list_images
from regard.tasks.classify.files import parse_label
from regard.tasks.classify.options import ClassifyData
from regard.tasks.images import check_synthetic, hash_images, hash_synthetic, image_path, synthetic_scenes

IDX_LABELS = "train-labels-idx1-ubyte"

BY_CONTENT = ("", "source", "image")  # values of data.split_by: equal images are in the same split

TABLES = (*COLUMNS, ".jsonl")


def locate(data: ClassifyData, split: str, base_dir: Path | None) -> Path:
    """The file or folder of a split, or the name of the synthetic dataset."""
    if not data.synthetic:
        return file_of(data, split, base_dir, folders_allowed=True)
    check_synthetic(data, "images")
    return Path(data.synthetic)


def files(path: Path) -> Mapping[str, Path]:
    """The files of a path; of a folder all its images."""
    if path.is_dir():
        return {image.relative_to(path).as_posix(): image for image in list_images(path)}
    return expand(path)


def records(data: ClassifyData, split: str, base_dir: Path | None) -> Iterator[Record]:
    """Every image of the file or folder that contains a split: its name is the source, its label the target.

    Where a split is held out of train, equal images are in the same group, whatever their names.
    """
    path = locate(data, split, base_dir)
    if data.synthetic:
        scenes = synthetic_scenes(data, split, "images")
        return (Record(name, drawn.label, "", name, name) for name, drawn in scenes)
    if path.is_dir():
        return _folder(data, path)
    arrays = [file for file in files(path).values() if is_array_file(file)]
    if arrays:
        return (record for file in arrays for record in _array(data, file))
    return _table(data, split, path)


def hashes(data: ClassifyData, split: str, base_dir: Path | None) -> dict[str, str]:
    """The hashes of all that a split is read from."""
    path = locate(data, split, base_dir)
    if data.synthetic:
        return hash_synthetic(data, split)
    known = hash_files(path)
    if path.is_dir():
        return known
    if all(map(is_array_file, files(path).values())):
        labels = [label_file(file) for file in files(path).values()]
        return known | {file.name: content_hash(file) for file in labels if file is not None}
    return known | hash_images(record.source for record in records(data, split, base_dir))


def _group(data: ClassifyData, path: Path) -> str:
    return content_hash(path) if any(fractions(data)) and path.is_file() else str(path)


def _folder(data: ClassifyData, folder: Path) -> Iterator[Record]:
    """The images of folder/LABEL/…; those that are in no subfolder have no label."""
    if data.problem_type != "single_label":
        raise UserError(
            f"{folder}: a folder per class is for data.problem_type = 'single_label', not '{data.problem_type}': use a "
            "table with the columns image and label"
        )
    if data.split_by not in BY_CONTENT:
        raise UserError(f"data.split_by = '{data.split_by}': a folder has no columns: remove it, or use a table")
    images = list_images(folder)
    if all(path.parent == folder for path in images):
        problem = "its images are in no subfolder" if images else "no images"
        raise UserError(f"{folder}: {problem}; expected a folder per class, such as {folder / 'cat' / '1.jpg'}")
    for path in images:
        label = path.relative_to(folder).parts[0] if path.parent != folder else ""
        yield Record(str(path), parse_label(data, label, str(path)), "", _group(data, path), str(path))


def _array(data: ClassifyData, path: Path) -> Iterator[Record]:
    images, labels = read_arrays(path)
    if labels is None:
        raise UserError(f"{path}: has no labels: expected an array 'labels', or a file such as {IDX_LABELS}")
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        name = f"{path}#{index}"
        group = hashlib.blake2b(image.tobytes(), digest_size=16).hexdigest() if any(fractions(data)) else name
        yield Record(name, parse_label(data, label, name), "", group, name)


def _table(data: ClassifyData, split: str, path: Path) -> Iterator[Record]:
    """The rows of a table; paths of images are relative to its folder."""
    if not {suffix(file) for file in files(path).values()} <= {*TABLES}:
        raise UserError(
            f"{path}: unknown file type; expected a folder with a subfolder per class, a table ({', '.join(TABLES)}), "
            "or arrays (.npz, or IDX as MNIST is published)"
        )
    image = data.image or "image"
    label = data.label or "label"
    if data.split_by == CONTAINING:
        raise UserError(f"data.split_by = '{CONTAINING}' is for texts: name a column, or leave it out")
    column = "" if data.split_by in (*BY_CONTENT, image) else data.split_by
    required = {"data.image": image, "data.label": label, "data.split_by": column}
    required = {option: name for option, name in required.items() if name}
    json_types = {label: TARGETS[data.problem_type].json_types}
    for fields, location in rows(path, data.columns, required, json_types):
        source = image_path(fields[image], location)
        group = fields[column] if column else _group(data, Path(source))
        target = parse_label(data, fields[label], location)
        yield Record(source, target, "", group, location, split=selected_split(fields, data, split, location))

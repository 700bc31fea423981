"""Images: CIFAR and ImageNet as they lie on a disk, in miniature; and rendered characters."""

from __future__ import annotations

import hashlib
import pickle
import shutil
import tarfile
from pathlib import Path
from unittest.mock import Mock
from urllib.error import URLError

import numpy as np
import pytest
from kinds import fingerprint, known_content
from PIL import Image
from same_bits import Reason, assert_same_bits, same_integers

from comt_cli.data.images.pictures import torchvision_datasets
from comt_cli.data.images.sets import imagenet
from comt_cli.data.images.sets.glyphs import CHARACTERS, GlyphRenderer
from comt_cli.data.images.sets.imagenet import ImageNet
from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.data.loader import EvaluationBatches, TrainBatches
from comt_cli.data.order import uniform_draws
from comt_cli.data.prepare import prepare
from comt_cli.errors import UserError

IMAGES_A_FILE = 4


@pytest.fixture(params=["cifar10", "cifar100"])
def cifar(request, tmp_path, monkeypatch):
    """(torchvision's class, the folder, the name) of a CIFAR of few images, in the format and checked as the real."""
    datasets = torchvision_datasets()
    kind = datasets.CIFAR10 if request.param == "cifar10" else datasets.CIFAR100
    folder = tmp_path / kind.base_folder
    folder.mkdir()
    generator = np.random.default_rng(0)
    label_key = "labels" if request.param == "cifar10" else "fine_labels"
    names = [f"class {number}" for number in range(10 if request.param == "cifar10" else 100)]

    def write(name, content):
        (folder / name).write_bytes(pickle.dumps(content))
        return hashlib.md5((folder / name).read_bytes()).hexdigest()

    for attribute in ("train_list", "test_list"):
        files = [
            [name, write(name, {
                "data": generator.integers(0, 256, (IMAGES_A_FILE, 3072), dtype=np.uint8),
                label_key: generator.integers(0, len(names), IMAGES_A_FILE).tolist(),
            })]
            for name, _ in getattr(kind, attribute)
        ]  # fmt: skip
        monkeypatch.setattr(kind, attribute, files)
    meta = kind.meta["filename"]
    md5 = write(meta, {kind.meta["key"]: names})
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": md5})
    return kind, tmp_path, request.param


def test_cifar_is_what_torchvision_reads(cifar):
    kind, folder, name = cifar
    data = ImageDataSettings(images=name, folder=str(folder))
    dataset = prepare(data)
    for side, train in ((dataset.train, True), (dataset.validation, False)):
        expected = kind(folder, train=train)
        assert same_integers(side.pixels, expected.data)
        assert side.labels.tolist() == expected.targets
    assert list(dataset.class_names) == kind(folder).classes
    assert dataset.fingerprint == fingerprint(data)
    assert dataset.mean == pytest.approx((kind(folder).data / 255).mean((0, 1, 2)))
    fewer = prepare(data.model_copy(update={"train_images": 3}))
    assert same_integers(fewer.train.pixels, dataset.train.pixels[:3])  # type: ignore[index]
    assert fewer.content_hash != dataset.content_hash == prepare(data).content_hash


@pytest.mark.filterwarnings("ignore:Python 3.14 will:DeprecationWarning")
def test_an_archive_of_cifar_is_unpacked_where_it_is_whole(cifar, cache, monkeypatch):
    kind, folder, name = cifar
    data = ImageDataSettings(images=name, folder=str(folder))
    before, base, archive = prepare(data), folder / kind.base_folder, folder / kind.filename
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(base, base.name)
    shutil.rmtree(base)
    monkeypatch.setattr(torchvision_datasets().utils, "_get_redirect_url", Mock(side_effect=URLError("no network")))
    for where, said in ((folder, str(folder)), (None, str(cache / "images" / "cifar"))):  # damaged; not there
        with pytest.raises(UserError, match=f"{name} is damaged in {said}/.*, or missing .*: .*no network") as caught:
            prepare(ImageDataSettings(images=name, folder=where and str(where)))
        assert f"{kind.filename} into {said}" in str(caught.value.hint)
    assert not base.exists()
    monkeypatch.setattr(kind, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    assert prepare(data).content_hash == before.content_hash
    first = min(base.iterdir())
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(UserError, match=f"{name} is damaged in {base}"):
        prepare(data)


def make_imagenet(folder, classes=3):
    generator = np.random.default_rng(1)
    for part, images in (("train", 5), ("val", 2)):
        for label in range(classes):
            here = folder / part / f"n{label:08}"
            here.mkdir(parents=True)
            for number in range(images):
                shape = (40 + 7 * number, 61 - 5 * number, 3)
                smooth = np.linspace(0, 255, shape[0] * shape[1] * 3).reshape(shape) / 2 + generator.uniform(0, 60)
                image = Image.fromarray(smooth.astype(np.uint8))
                (image.convert("L") if number == 1 else image).save(here / f"{part}_{number}.JPEG")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(ImageNet, "classes", {"imagenet": 3})
    make_imagenet(tmp_path / "imagenet")
    return tmp_path / "imagenet"


def settings(folder, **changes):
    return ImageDataSettings(images="imagenet", size=24, folder=str(folder), **changes)


def test_imagenet_is_read_as_torchvision_would(folder):
    from torchvision import transforms

    dataset = prepare(settings(folder, augmentation="resized-crop-flip"))
    assert (len(dataset.train), len(dataset.validation)) == (15, 6)
    assert list(dataset.class_names) == ["n00000000", "n00000001", "n00000002"]
    assert dataset.train.pixels is None
    look = transforms.Compose([transforms.Resize(round(24 * 256 / 224)), transforms.CenterCrop(24)])
    (batch,) = EvaluationBatches(dataset.validation, batch_size=6)
    for index, label, pixels in zip(batch.indices, batch.labels, batch.pixels, strict=True):
        path = Path(dataset.validation.files[index])  # type: ignore[attr-defined]
        assert path.parent.name == dataset.class_names[label]
        assert same_integers(pixels, np.asarray(look(Image.open(path).convert("RGB"))))


def test_runs_of_one_table_that_crop_and_that_do_not_are_read_apart(folder):
    """What is opened is kept by its fingerprint, and what reads imagenet also cuts."""
    assert fingerprint(settings(folder, augmentation="resized-crop-flip")) != fingerprint(settings(folder))
    one, other = (ImageDataSettings(images="cifar10", augmentation=each) for each in ("none", "crop"))
    assert fingerprint(one) == fingerprint(other)
    assert fingerprint(DATA.model_copy(update={"augmentation": "crop", "folder": "/elsewhere"})) == fingerprint(DATA)


def test_the_content_of_a_folder_is_of_the_files_that_lie_there_now(folder):
    """What was noted when it was prepared counts until a file comes, goes or changes its size; ImageNet scaled by
    somebody under the same names is other data."""
    data = settings(folder)
    noted = prepare(data).content_hash
    assert known_content(data, fingerprint(data)) == noted
    image = folder / "train" / "n00000001" / "train_0.JPEG"
    content = Image.open(image).resize((12, 12))
    image.unlink()
    assert known_content(data, fingerprint(data)) is None
    content.save(image)
    assert known_content(data, fingerprint(data)) is None
    scaled = prepare(data).content_hash
    assert known_content(data, fingerprint(data)) == scaled != noted
    shutil.rmtree(folder)
    assert known_content(data, fingerprint(data)) is None


def test_parts_of_imagenet_are_cut_by_the_draws(folder):
    from torchvision.transforms import functional

    dataset = prepare(settings(folder, augmentation="resized-crop-flip"))
    with TrainBatches(dataset.train, seed=3, batch_size=8, micro_batch_size=3, first_step=1, last_step=2) as batches:
        (parts,) = list(batches)
    draws = uniform_draws(3, 8, 8, imagenet.DRAWS)
    assert_same_bits(np.concatenate([part.draws for part in parts]), draws, Reason.EXACT)
    cut = np.concatenate([part.pixels for part in parts])
    indices = np.concatenate([part.indices for part in parts])
    for index, row, pixels in zip(indices, draws, cut, strict=True):
        image = Image.open(dataset.train.files[index]).convert("RGB")  # type: ignore[attr-defined]
        left, top, right, bottom = imagenet.random_box(image.width, image.height, row)
        expected = functional.resized_crop(image, top, left, bottom - top, right - left, [24, 24])
        assert same_integers(pixels, np.asarray(expected))

    plain = prepare(settings(folder))
    batch = plain.train.train_batch(indices, 3, 8)
    assert same_integers(batch.pixels, plain.train.batch(indices).pixels)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "val").rename(folder / "test"), "val"),
        (lambda folder: (folder / "val" / "n00000000").rename(folder / "val" / "n9"), "n00000000 is only in one"),
        (lambda folder: (folder / "train" / "new").mkdir(), "new"),
        (lambda folder: make_imagenet(folder / "train" / "n00000003", 1), "4 class folders, not 3"),
    ],
)
def test_an_imagenet_folder_that_is_unfit(folder, spoil, said):
    spoil(folder)
    with pytest.raises(UserError, match=f"imagenet is not in {folder}: .*{said}") as caught:
        prepare(settings(folder))
    assert "train/ and val/" in str(caught.value.hint)
    assert "--set data.folder=" in str(caught.value.hint)


DATA = ImageDataSettings(size=16, train_images=50, validation_images=20)


@pytest.mark.parametrize(("name", "size"), [("glyphs10", 8), ("glyphs10", 16), ("glyphs100", 33)])
def test_an_image_is_a_pure_function_of_its_number(name, size):
    whole = GlyphRenderer(name, "train", size).render(0, 12)
    assert whole.shape == (12, size, size, 3)
    assert whole.dtype == np.uint8
    renderer = GlyphRenderer(name, "train", size)
    parts = [renderer.render(start, count) for start, count in ((5, 7), (0, 1), (1, 4))]
    assert same_integers(whole, np.concatenate([parts[1], parts[2], parts[0]]))
    assert same_integers(renderer.labels(3, 9), renderer.labels(0, 12)[3:])


def test_rendered_images_are_opened(cache):
    renderer, dataset = GlyphRenderer("glyphs10", "train", 16), prepare(DATA)
    assert same_integers(dataset.train.pixels, renderer.render(0, 50))
    assert same_integers(dataset.train.labels, renderer.labels(0, 50))
    assert (len(dataset.train), len(dataset.validation), dataset.size) == (50, 20, 16)
    assert "".join(dataset.class_names) == CHARACTERS["glyphs10"]
    scaled = renderer.render(0, 50) / 255
    assert dataset.mean == pytest.approx(scaled.mean((0, 1, 2)))
    assert dataset.std == pytest.approx(scaled.std((0, 1, 2)))

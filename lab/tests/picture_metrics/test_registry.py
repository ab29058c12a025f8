import sys
import types

import pytest
import torch
from tests.tiny.tokenizers import clip_tokenizer

from tacache.errors import HostError
from tacache_lab.picture_metrics import (
    METRICS,
    Metric,
    Samples,
    clip_iqa,
    clip_similarity,
    measure,
    missing,
    psnr,
    q_align,
    quality,
    ssim,
)

QUALITY = ["clip-iqa", "q-align", "clip-similarity"]


@pytest.fixture(autouse=True)
def forget():
    """What one test loaded or missed is not known to the next."""
    for one in (missing, quality.load_clip, quality.load_clip_iqa, quality.load_q_align):
        one.cache_clear()
    yield
    for one in (missing, quality.load_clip, quality.load_clip_iqa, quality.load_q_align):
        one.cache_clear()


@pytest.fixture
def pictures():
    torch.manual_seed(0)
    return Samples(*torch.rand(2, 2, 3, 32, 32), prompts=("a cat", "a dog"))


@pytest.fixture
def clips():
    torch.manual_seed(0)
    return Samples(*torch.rand(2, 2, 3, 3, 16, 16), prompts=("a cat", "a dog"))


@pytest.mark.slow
def test_pictures_get_one_number_each(pictures):
    found = measure(["psnr", "ssim"], pictures)
    assert found["psnr"] == psnr(pictures.references, pictures.images).tolist()
    assert found["ssim"] == ssim(pictures.references, pictures.images).tolist()


@pytest.mark.slow
def test_clips_get_one_number_each(clips):
    found = measure(["psnr", "ssim", "motion-psnr", "motion-ssim"], clips)
    assert all(len(values) == 2 for values in found.values())
    frames = psnr(clips.references[1], clips.images[1])
    assert found["psnr"][1] == pytest.approx(float(frames.mean()))
    moves = (one[1][1:] - one[1][:-1] for one in (clips.references, clips.images))
    differences = psnr(*((move + 1) / 2 for move in moves))
    assert found["motion-psnr"][1] == pytest.approx(float(differences.mean()))


def test_pictures_do_not_move(pictures):
    assert measure(["motion-psnr"], pictures)["motion-psnr"].startswith("not run: clips are")


def test_nothing_to_compare_to(pictures):
    found = measure(["psnr", "clip-similarity"], Samples(pictures.images))
    assert found["psnr"] == "not run: no references were given"
    assert found["clip-similarity"] == "not run: no prompts were given"


def test_an_unknown_name_is_an_error_before_anything_runs(pictures):
    with pytest.raises(HostError, match="there are psnr, ssim"):
        measure(["psnr", "pnsr"], pictures)


def test_what_does_not_fit_does_not_stop_the_rest(pictures, monkeypatch):
    def broken(samples):
        raise RuntimeError("out of memory")

    monkeypatch.setitem(METRICS, "broken", Metric("Broken", "higher", None, broken))
    wrong = Samples(pictures.images, pictures.references[:, :, 1:])
    found = measure(["broken", "psnr"], wrong)
    assert found["broken"] == "failed: RuntimeError: out of memory"
    assert found["psnr"].startswith("not run: pictures of shapes")


def test_what_is_missing_is_asked_once(pictures, monkeypatch):
    calls = []

    def prepare():
        calls.append(1)
        raise HostError("the weights")

    metric = Metric("Absent", "higher", None, lambda samples: samples.images, prepare)
    monkeypatch.setitem(METRICS, "absent", metric)
    for _ in range(3):
        assert measure(["absent"], pictures) == {"absent": "not run: the weights"}
    assert missing(metric) == "the weights"
    assert len(calls) == 1
    assert missing(METRICS["psnr"]) is None


def test_a_library_that_breaks_while_loading_is_missing():
    def prepare():
        raise RuntimeError("bad file")

    metric = Metric("Broken", "higher", None, lambda samples: samples.images, prepare)
    assert missing(metric) == "RuntimeError: bad file"


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("clip-iqa", "piq", "quality"),
        ("q-align", "pyiqa", "q-align"),
        ("clip-similarity", "transformers", "quality"),
    ],
)
def test_without_its_library_a_metric_names_the_extra(pictures, monkeypatch, name, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    reason = measure([name], pictures)[name]
    assert reason.startswith(f"not run: {METRICS[name].title} needs {module}")
    assert reason.endswith(f"pip install 'tacache[{extra}]'")


@pytest.mark.slow
def test_without_its_weights_a_metric_names_them(tmp_path):
    with pytest.raises(HostError, match="CLIP similarity needs the weights of"):
        clip_similarity(torch.rand(1, 3, 32, 32), ["a cat"], model=str(tmp_path / "absent"))


@pytest.fixture
def tiny_clip(tmp_path):
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor

    tokenizer = clip_tokenizer()
    small = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    text = {**small, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    vision = {**small, "image_size": 32, "patch_size": 8}
    torch.manual_seed(0)
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))
    side = {"height": 32, "width": 32}
    images = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=side)
    model.save_pretrained(tmp_path)
    CLIPProcessor(images, tokenizer).save_pretrained(tmp_path)
    return str(tmp_path)


def test_clip_similarity_is_the_cosine_of_picture_and_prompt(tiny_clip, pictures):
    from transformers import CLIPModel, CLIPProcessor

    found = clip_similarity(pictures.images, pictures.prompts, model=tiny_clip)
    model, processor = (kind.from_pretrained(tiny_clip) for kind in (CLIPModel, CLIPProcessor))
    levels = list((pictures.images * 255).round().to(torch.uint8))
    inputs = processor(
        text=list(pictures.prompts), images=levels, return_tensors="pt", padding=True
    )
    with torch.no_grad():
        output = model.eval()(**inputs)
    cosines = (output.image_embeds * output.text_embeds).sum(dim=1)
    assert found.tolist() == pytest.approx((100 * cosines).clamp(min=0).tolist(), abs=1e-3)


def test_clip_similarity_of_clips_repeats_the_prompt(clips, monkeypatch):
    asked = []

    def similarity(images, prompts):
        asked.extend(prompts)
        return torch.arange(len(images)).double()

    monkeypatch.setattr("tacache_lab.picture_metrics.registry.clip_similarity", similarity)
    monkeypatch.setattr(quality, "_require", lambda *_: None)
    monkeypatch.setattr(quality, "_with_weights", lambda *_: (None, None))
    assert measure(["clip-similarity"], clips)["clip-similarity"] == [1.0, 4.0]
    assert asked == ["a cat"] * 3 + ["a dog"] * 3


def test_clip_similarity_wants_one_prompt_a_picture():
    with pytest.raises(HostError, match="one each"):
        clip_similarity(torch.rand(2, 3, 8, 8), ["a cat"])


class Brightness(torch.nn.Module):
    """Stands for a model that takes one picture at a time."""

    seen = 0

    def forward(self, images):
        """The mean of one picture in [0, 1]."""
        assert images.shape[0] == 1
        assert torch.equal(images, images.clamp(0, 1))
        self.seen += 1
        return images.mean(dim=(1, 2, 3))[:, None]

    def reset(self):
        """As if nothing had been seen."""
        self.seen = 0


def test_q_align_is_pyiqa_s(clips, pictures, monkeypatch):
    made = []

    def create_metric(name):
        made.append(name)
        return Brightness()

    library = types.SimpleNamespace(create_metric=create_metric)
    monkeypatch.setitem(sys.modules, "pyiqa", library)
    expected = pictures.images.mean(dim=(1, 2, 3)).tolist()
    assert q_align(pictures.images).tolist() == pytest.approx(expected)
    found = measure(["q-align"], clips)["q-align"]
    assert found == pytest.approx(clips.images.mean(dim=(1, 2, 3, 4)).tolist())
    assert made == ["qalign"]


def test_clip_iqa_is_torchmetrics_and_forgets_what_it_saw(pictures, monkeypatch):
    import torchmetrics.multimodal

    metric, asked = Brightness(), {}

    def create(**options):
        asked.update(options)
        return metric

    monkeypatch.setitem(sys.modules, "piq", types.ModuleType("piq"))
    monkeypatch.setattr(torchmetrics.multimodal, "CLIPImageQualityAssessment", create)
    values = clip_iqa(pictures.images * 3 - 1)  # values out of range are cut
    assert values.tolist() == pytest.approx(
        (pictures.images * 3 - 1).clamp(0, 1).mean(dim=(1, 2, 3)).tolist()
    )
    assert asked == {"model_name_or_path": "clip_iqa", "data_range": 1.0}
    assert metric.seen == 0


def test_every_metric_says_what_it_is():
    assert {"psnr", "ssim", "lpips", "lpips-vgg", *QUALITY} <= METRICS.keys()
    assert len({metric.title for metric in METRICS.values()}) == len(METRICS)
    lower = {name for name, metric in METRICS.items() if metric.better == "lower"}
    assert lower == {"lpips", "lpips-vgg", "motion-lpips"}

from PIL import Image

from tacache_lab.films import film


def test_what_does_not_move_or_is_damaged_is_no_film(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "still.webp")
    (tmp_path / "torn.gif").write_bytes(b"GIF89a")
    assert film(tmp_path / "still.webp") is None
    assert film(tmp_path / "torn.gif") is None
    assert film(tmp_path / "any.mp4") is None


def test_frames_lie_under_each_other_as_long_as_they_last(tmp_path):
    frames = [Image.new("RGB", (4, 2), (60 * n, 0, 0)) for n in range(3)]
    frames[0].save(
        tmp_path / "c.webp", save_all=True, append_images=frames[1:], duration=50, lossless=True
    )
    made = film(tmp_path / "c.webp")
    assert made is not None
    assert (made.width, made.height, made.frames) == (4, 2, 3)
    assert made.seconds == 0.15
    (tmp_path / "film.png").write_bytes(made.content)
    with Image.open(tmp_path / "film.png") as whole:
        assert whole.size == (4, 6)
        assert [whole.getpixel((1, 2 * n))[0] for n in range(3)] == [0, 60, 120]


def test_half_a_clip_is_no_film(tmp_path):
    frames = [Image.new("RGB", (16, 16), (n, 0, 0)) for n in (0, 200)]
    whole = tmp_path / "whole.webp"
    frames[0].save(whole, save_all=True, append_images=frames[1:], lossless=True)
    assert film(whole) is not None
    (tmp_path / "half.webp").write_bytes(whole.read_bytes()[:40])
    assert film(tmp_path / "half.webp") is None

import torch

from tacache.studio.previews import destination, main_colours, preview


def test_a_straight_run_is_seen_to_its_end():
    data, noise = torch.zeros(1, 4), torch.ones(1, 4)
    states = [data + t * (noise - data) for t in (0.8, 0.5)]
    assert torch.allclose(destination(*states, 0.8, 0.5), data)
    assert torch.allclose(destination(noise, data, 0.3, 0.0), data)


def test_large_latents_show_their_main_colours():
    x = torch.randn(16, 40, 40, generator=torch.Generator().manual_seed(0))
    x[3] += torch.linspace(-20, 20, 40)  # what varies most, from left to right
    colours = main_colours(x)
    assert colours.shape == (3, 40, 40)
    assert 0 <= float(colours.min()) <= float(colours.max()) <= 1
    main = colours[-1].mean(dim=0)
    assert abs(float(main[-1] - main[0])) > 0.9
    assert preview(object(), x[None], None, None).shape == (40, 40, 3)


def test_latents_in_an_unknown_order_have_no_preview():
    class Foreign:
        vae_scale_factor = 8

        def _unpack_latents(self, latents, frames):
            raise AssertionError("it takes other arguments")

    assert preview(object(), torch.zeros(1, 4, 8), 32, 32) is None
    assert preview(Foreign(), torch.zeros(1, 4, 8), 32, 32) is None
    assert preview(Foreign(), torch.zeros(4), 32, 32) is None

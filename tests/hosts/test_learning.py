"""Recorded samples: on disk until a plan is fitted to them, for one process at a time."""

import pytest
import torch

from tacache.errors import HostError, StorageError
from tacache.hosts import learning as module
from tacache.hosts.learning import Learning, RunRecord

TIMES = (1.0, 0.5, 0.25, 0.0)


@pytest.fixture
def learning(tmp_path):
    made = Learning(tmp_path / "learning" / "key")
    assert made.begin()
    return made


def states(rows=2):
    return [torch.full((rows, 3), float(n)) + torch.arange(rows)[:, None] for n in range(4)]


def recorded(learning, wanted=8, rows=2, done=lambda: None, at=0.0):
    record = RunRecord(learning, wanted, TIMES, lambda row, of: {"row": row, "of": of}, done)
    x = [state + at for state in states(rows)]
    for n in range(3):
        record.see(x[n], -x[n], x[n + 1])


def test_each_row_of_a_batch_is_a_sample(learning):
    seen = []
    recorded(learning, done=lambda: seen.append(learning.count()))
    assert seen == [2]
    first, second = learning.samples()
    assert (first.call, second.call) == ({"row": 0, "of": 2}, {"row": 1, "of": 2})
    assert first.times == TIMES
    assert torch.equal(second.states, torch.stack(states())[:, 1:])
    assert torch.equal(second.velocities, -second.states[:-1])
    assert torch.equal(second.noise, second.states[0])
    (x0, v0), (x1, v1) = second.ends
    assert torch.equal(torch.stack([x0, x1]), second.states[[0, 2]])
    assert torch.equal(torch.stack([v0, v1]), second.velocities[[0, 2]])
    assert second.seconds > 0


def test_no_more_are_kept_than_are_wanted(learning):
    recorded(learning, wanted=3)
    recorded(learning, wanted=3, at=0.25)
    assert learning.count() == 3
    recorded(learning, wanted=3, at=0.5)
    assert learning.count() == 3


def test_the_same_call_from_the_same_noise_counts_once(learning):
    """Else the held-out sample of a certificate could be one that was fitted."""
    seen = []
    for at in (0.0, 0.0, 0.25):
        recorded(learning, at=at, done=lambda: seen.append(learning.count()))
    assert seen == [2, 2, 4]


def test_beyond_the_limit_only_the_ends_are_kept(learning, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    recorded(learning)
    first, _ = learning.samples()
    assert first.states is None
    assert first.velocities is None
    assert torch.equal(first.ends[1][0], states()[2][:1])
    assert torch.equal(first.ends[1][1], -states()[2][:1])
    assert torch.equal(first.ends[0][0], states()[0][:1])


def test_edited_latents_are_refused(learning):
    record = RunRecord(learning, 2, TIMES, lambda row, of: {}, lambda: None)
    x = states()
    record.see(x[0], x[0], x[1])
    with pytest.raises(HostError, match="edited between the steps"):
        record.see(x[1] + 1, x[1], x[2])
    assert learning.count() == 0


def test_one_learner_at_a_time(learning):
    other = Learning(learning.folder)
    assert learning.begin()
    assert not other.begin()
    recorded(learning)
    learning.end()
    assert other.begin()
    assert other.count() == 2
    assert not learning.begin()
    other.forget()
    assert learning.begin()
    assert learning.count() == 0


def test_samples_are_shown_once_as_unseen(learning):
    recorded(learning)
    assert len(list(learning.unseen())) == 2
    assert not list(learning.unseen())
    recorded(learning, at=0.25)
    assert len(list(learning.unseen())) == 2


def test_a_damaged_file_is_named_and_deleted(learning, caplog):
    recorded(learning)
    damaged = min(learning.folder.glob("*.sample"))
    damaged.write_bytes(b"nothing")
    assert [one.call["row"] for one in learning.samples()] == [1]
    assert not damaged.exists()
    assert str(damaged) in caplog.text
    recorded(learning)  # and no file is written over
    assert [one.call["row"] for one in learning.samples()] == [1, 0]


def test_a_file_in_the_place_of_the_folder_is_an_error(tmp_path):
    (tmp_path / "learning").write_text("")
    with pytest.raises(StorageError, match="learning"):
        Learning(tmp_path / "learning" / "key").begin()


def test_what_a_killed_process_left_is_cleared_but_not_what_another_one_keeps(learning):
    recorded(learning)
    Learning(learning.folder).clear()
    assert learning.count() == 2
    learning.end()
    Learning(learning.folder).clear()
    assert not learning.folder.exists()
    Learning(learning.folder).clear()


def test_samples_with_their_prompts_are_nobody_elses(learning):
    assert learning.folder.stat().st_mode & 0o077 == 0


def latents_seen(learning, first, other):
    record = RunRecord(
        learning, 8, (1.0, 0.0), lambda row, of: {"row": row, "of": of}, lambda: None
    )
    record.see_latent(None, 2, first, first, first)
    record.see_latent("audio", 2, other, other, other)
    return learning.samples()


def test_a_batch_of_several_latents_is_kept_by_its_samples(learning):
    picture, sound = torch.rand(2, 3, 4), torch.rand(2, 5, 2)
    for n, kept in enumerate(latents_seen(learning, picture, sound)):
        assert kept.call == {"row": n, "of": 2}
        assert torch.equal(kept.noise[0], torch.cat([picture[n].flatten(), sound[n].flatten()]))


@pytest.mark.parametrize("rows", [3, 5])
def test_tables_of_tokens_are_one_sample(learning, rows):
    (kept,) = latents_seen(learning, torch.rand(3, 4), torch.rand(rows, 2))
    assert kept.call == {"row": 0, "of": 1}
    assert kept.noise.shape == (1, 12 + 2 * rows)

from tests.studio.conftest import STEPS
from tests.studio.test_choices import fitted

from tacache.studio.sessions import Session


def test_everybody_has_a_session_of_their_own(studio):
    me, you = studio.session("me"), studio.session("you")
    assert me is studio.session("me")
    assert me is not you
    assert me.folder != you.folder
    me.profile, me.drift = None, [(1, 0.5)]
    assert you.profile is studio.profile
    assert you.drift == []


def test_a_hostile_key_names_no_folder(studio):
    folder = studio.session("../../etc/passwd").folder
    assert folder.parent == studio.folder


def test_who_leaves_is_stopped_and_forgotten(studio):
    session = studio.session("me")
    stop = session.begin("draw")
    (session.folder / "file").write_text("x")
    studio.leave("me")
    assert stop.is_set()
    assert not session.folder.exists()
    assert studio.session("me") is not session
    studio.leave("nobody knows")


def test_who_was_away_longest_is_forgotten_first(studio, monkeypatch):
    monkeypatch.setattr("tacache.studio.sessions.MAX_SESSIONS", 2)
    first, second = studio.session("a"), studio.session("b")
    assert studio.session("a") is first
    studio.session("c")
    assert studio.session("a") is first
    assert studio.session("b") is not second


def test_a_new_job_stops_the_one_before_of_its_kind(studio):
    session: Session = studio.session("me")
    learning, first = session.begin("learn"), session.begin("draw")
    second = session.begin("draw")
    assert first.is_set()
    assert not second.is_set()
    session.stop("draw")
    assert second.is_set()
    assert not learning.is_set()
    session.stop()
    assert learning.is_set()


def test_what_a_person_sees_follows_the_steps_that_are_set(studio, shelf):
    me, you = studio.session("me"), studio.session("you")
    shelf.put(fitted(studio.model, 4))
    me.steps = 8
    mine, yours = studio.known(me), studio.known(you)
    assert (mine.model.steps, yours.model.steps) == (8, STEPS)
    assert (mine.profile.steps, yours.profile.steps) == (8, STEPS)
    assert (len(mine.shelf.plans()), len(yours.shelf.plans())) == (0, 1)
    assert studio.known(me).rivals is mine.rivals

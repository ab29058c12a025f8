import threading

import pytest

from tacache.studio.turns import Finished, JobProgress, Part, StoppedError, Turns, Waiting, news_of


def test_jobs_have_the_model_one_at_a_time_in_the_order_they_came(hearing):
    turns, order, first_is_in, go_on = Turns(), [], threading.Event(), threading.Event()
    watches = [hearing() for _ in range(3)]

    def work(i):
        with turns.turn(watches[i]):
            order.append(i)
            first_is_in.set()
            assert go_on.wait(10)

    threads = []
    for i in range(3):
        threads.append(threading.Thread(target=work, args=[i]))
        threads[-1].start()
        assert first_is_in.wait(10)
        while len(turns._line) < i + 1:
            pass
    while not (watches[1].news and watches[2].news):
        pass
    assert order == [0]
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert order == [0, 1, 2]
    assert watches[0].news == []
    assert watches[1].news[0] == Waiting(1)
    assert watches[2].news[0] == Waiting(2)


def test_who_waits_can_leave_the_line(hearing):
    turns, leaving = Turns(), hearing(stop_after=1)
    with turns.turn(hearing()), pytest.raises(StoppedError), turns.turn(leaving):
        pytest.fail("it had no turn")
    with turns.turn(hearing()):
        pass  # the line is empty again


def test_news_come_before_the_result():
    def job(watch):
        watch.tell(Part("first", 1))
        watch.tell(Waiting(2))
        return "done"

    assert list(news_of(job, threading.Event())) == [Part("first", 1), Waiting(2), Finished("done")]


def test_progress_that_is_out_of_date_is_left_out():
    told = threading.Event()

    def job(watch):
        watch.tell(Waiting(1))
        for n in range(5):
            watch.tell(JobProgress("run", n, 5))
        told.set()

    news = news_of(job, threading.Event())
    assert next(news) == Waiting(1)
    assert told.wait(10)
    assert [one.done for one in news if isinstance(one, JobProgress)] in ([], [4])


def test_what_a_job_raises_is_raised():
    with pytest.raises(ZeroDivisionError):
        list(news_of(lambda watch: 1 / 0, threading.Event()))


def test_an_error_after_a_stop_counts_as_stopped():
    """The way up from a deep call may give the error another type."""

    def job(watch):
        watch.stop.set()
        raise ValueError("wrapped on its way")

    with pytest.raises(StoppedError):
        list(news_of(job, threading.Event()))


def test_a_job_stops_when_nobody_listens_any_more():
    stop, ended = threading.Event(), threading.Event()

    def job(watch):
        watch.tell(Waiting(1))
        assert watch.stop.wait(10)
        ended.set()

    news = news_of(job, stop)
    next(news)
    news.close()
    assert ended.is_set()

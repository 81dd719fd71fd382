"""What is done now and then is done in time, and takes its share of the time and no more."""

from tokencredit.lab.compare.runner import Throttle


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_it_waits_first_and_then_as_long_as_what_it_does_costs() -> None:
    clock, done = Clock(), []

    def act() -> None:
        done.append(clock.now)
        clock.now += 3.0

    often = Throttle(act, least=30.0, share=0.05, clock=clock)
    for _ in range(2000):
        often()
        clock.now += 0.1
    # At 30 s; it took 3 s, a twentieth of 60: again 60 s after it ended.
    assert [round(at) for at in done] == [30, 93, 156]


def test_what_costs_nothing_is_done_every_so_often() -> None:
    clock, done = Clock(), []
    often = Throttle(lambda: done.append(clock.now), least=30.0, share=0.05, clock=clock)
    for clock.now in range(100):
        often()
    assert done == [30, 60, 90]

//! `serve` under a supervisor: readiness, status lines and the watchdog of systemd (`sd_notify`), and the
//! decision to give up when drafting hangs.
//!
//! Without `NOTIFY_SOCKET` nothing is sent. The watchdog is fed only while the drafting thread comes back to
//! its loop, so that a hung device call restarts the unit although every socket still answers.

use std::time::Duration;

use dspark::worker::progress::{PULSE, STALL, progress};
use dspark::worker::serve::Running;
use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};

/// Pause between two looks at the drafting thread, at most.
const LOOK: Duration = Duration::from_secs(1);
/// Looks between two status lines.
const STATUS_EVERY: u32 = 5;

/// How a worker ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The drafting thread is gone.
    Died,
    /// It has been stuck for this long.
    Stuck(Duration),
}

/// Tells the supervisor what is being done before the worker is ready.
pub(crate) fn status(text: &str) {
    notify(&[NotifyState::Status(text)]);
}

/// Tells the supervisor that the worker is ready.
pub(crate) fn ready() {
    notify(&[NotifyState::Ready, NotifyState::Status("ready, no session yet")]);
}

/// Tells the supervisor that the worker stops on purpose.
pub(crate) fn stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("stopping after the frame in hand")]);
}

/// Feeds the watchdog until the drafting thread is gone or has been stuck for `limit`.
pub(crate) async fn watch(running: &Running, limit: Duration) -> Ended {
    let watchdog = sd_notify::watchdog_enabled();
    let look = watchdog.map_or(LOOK, |time| (time / 4).min(LOOK)).max(PULSE);
    let mut ticks = interval(look);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut looks = 0;
    loop {
        tokio::select! {
            () = running.ended() => return Ended::Died,
            _ = ticks.tick() => {}
        }
        let age = running.stats.lock().loop_age();
        if age > limit {
            return Ended::Stuck(age);
        }
        if watchdog.is_some() && is_alive(age, look) {
            notify(&[NotifyState::Watchdog]);
        }
        if looks % STATUS_EVERY == 0 {
            status(&describe(running));
        }
        looks = looks.wrapping_add(1);
    }
}

/// Whether the drafting thread was in its loop since the last look, give or take a pulse.
fn is_alive(age: Duration, look: Duration) -> bool {
    age <= look + PULSE
}

fn describe(running: &Running) -> String {
    let stats = running.stats.snapshot();
    match (progress(&stats.to_json(), STALL, false), stats.session()) {
        (Err(stall), _) => format!("stalled: {stall}"),
        (Ok(()), 0) => "ready, no session yet".into(),
        (Ok(()), id) => format!("session {id:#010x}, {} steps", stats.steps()),
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the supervisor was not told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_missed_a_whole_look_is_not_alive() {
        let look = Duration::from_secs(1);
        assert!(is_alive(Duration::ZERO, look) && is_alive(look, look));
        assert!(!is_alive(look * 2, look));
    }
}

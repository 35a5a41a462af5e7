//! Whether a worker drafts, or only answers: one rule for `/readyz`, `ping --check` and the watchdog.
//!
//! A socket that answers proves nothing: the control listener has a thread of its own. What proves progress
//! is that the drafting thread comes back to its loop, and that the STEPs which arrive are answered with
//! drafts. An engine without requests sends nothing, and that is no stall.

use std::time::Duration;

use serde_json::Value;

/// How often the drafting thread says that it is back in its loop.
pub const PULSE: Duration = Duration::from_millis(250);
/// A worker is called stalled after this long, unless said otherwise.
pub const STALL: Duration = Duration::from_secs(5);

/// Why a worker makes no progress, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Stall {
    /// The drafting thread is not in its loop: a STEP hangs, or the thread is gone.
    #[error("the drafting thread has been stuck for {0:.1} s")]
    Stuck(f64),
    /// STEPs come, and every one is refused or fails.
    #[error("every STEP of the last {0:.1} s was refused or failed")]
    Failing(f64),
    /// A session is open and nothing comes. Only a stall where the engine is known to be busy.
    #[error("no STEP was answered for {0:.1} s although a session is open")]
    Silent(f64),
}

/// Judges a STATS document. `busy` says that the engine has requests all the time.
///
/// Keys that an older worker does not send count as no stall.
///
/// # Errors
/// What is wrong for longer than `limit`.
pub fn progress(stats: &Value, limit: Duration, busy: bool) -> Result<(), Stall> {
    let limit = limit.as_secs_f64();
    let seconds = |key: &str| stats[key].as_f64();
    let too_long = |key: &str| seconds(key).filter(|age| *age > limit);
    if let Some(age) = too_long("loop_age_s") {
        return Err(Stall::Stuck(age));
    }
    let asked_lately = seconds("last_request_age_s").is_some_and(|age| age <= limit);
    if let Some(age) = too_long("failing_s").filter(|_| asked_lately) {
        return Err(Stall::Failing(age));
    }
    let session = stats["session"].as_u64().is_some_and(|id| id != 0);
    if busy && session {
        let silent = seconds("last_step_age_s").or_else(|| seconds("session_age_s"));
        if let Some(age) = silent.filter(|age| *age > limit) {
            return Err(Stall::Silent(age));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn judged(stats: &Value, busy: bool) -> Result<(), Stall> {
        progress(stats, STALL, busy)
    }

    #[test]
    fn an_idle_engine_is_no_stall_unless_it_is_known_to_be_busy() {
        let idle = json!({ "session": 7, "loop_age_s": 0.1, "last_step_age_s": 3600.0,
            "last_request_age_s": 3600.0 });
        assert_eq!(judged(&idle, false), Ok(()));
        assert_eq!(judged(&idle, true), Err(Stall::Silent(3600.0)));
        let no_session = json!({ "session": 0, "loop_age_s": 0.1 });
        assert_eq!((judged(&no_session, false), judged(&no_session, true)), (Ok(()), Ok(())));
        let never = json!({ "session": 7, "loop_age_s": 0.1, "session_age_s": 6.0 });
        assert_eq!(judged(&never, true), Err(Stall::Silent(6.0)));
    }

    #[test]
    fn a_drafting_thread_that_does_not_come_back_is_a_stall() {
        let stuck = |age: f64| json!({ "session": 0, "loop_age_s": age });
        assert_eq!(judged(&stuck(5.0), false), Ok(()));
        assert_eq!(judged(&stuck(5.1), false), Err(Stall::Stuck(5.1)));
    }

    #[test]
    fn failures_are_a_stall_while_they_go_on() {
        let failing = |failing: f64, asked: f64| {
            json!({ "session": 7, "loop_age_s": 0.0, "failing_s": failing,
                "last_request_age_s": asked })
        };
        assert_eq!(judged(&failing(5.1, 0.1), false), Err(Stall::Failing(5.1)));
        assert_eq!(judged(&failing(4.9, 0.1), false), Ok(()));
        // The client has gone: nothing is known about the next one.
        assert_eq!(judged(&failing(600.0, 590.0), false), Ok(()));
    }

    #[test]
    fn a_worker_that_does_not_say_is_not_called_stalled() {
        assert_eq!(judged(&json!({}), true), Ok(()));
    }
}

//! Runs `breaker` scripts: rounds by what they were, and attempts to connect by what came of them.
//!
//! ```text
//! breaker [trip=N] [cooldown=N]       a new breaker; the contract's numbers by default
//! round WHAT [times=N]                N engine rounds of which each, if admitted, is WHAT:
//!                                     timeout transport refused frame unsent, or answered needed=N drafted=N
//! lost at=SECONDS                     a connection is lost, or could not be made or greeted
//! greeted                             a HELLO was accepted
//! connect at=SECONDS                  whether a connection may be tried
//! ```

use std::error::Error;
use std::fmt::Write;
use std::time::Duration;

use dspark::client::breaker::{Backoff, Breaker, Facts, State};
use goldenscript::{Command, Context, Runner};

/// A breaker and a backoff.
#[derive(Default)]
pub(crate) struct BreakerRunner {
    breaker: Breaker,
    backoff: Backoff,
}

fn facts(what: &str, needed: u32, drafted: u32) -> Result<Facts, Box<dyn Error>> {
    Ok(match what {
        "timeout" | "transport" | "refused" | "frame" => Facts::Failed,
        "unsent" => Facts::NotSent,
        "answered" => Facts::Answered { needed, drafted },
        other => return Err(format!("no kind of round {other:?}").into()),
    })
}

impl BreakerRunner {
    fn state(&self) -> String {
        let failures = self.breaker.failures();
        match self.breaker.state() {
            State::Closed => format!("closed, {failures} failed in a row"),
            State::Open { left } => format!("open, {left} rounds left"),
            State::Probing => format!("probing, {failures} failed in a row"),
        }
    }

    /// Rounds with the same result are shown as one line.
    fn rounds(&mut self, facts: Facts, times: u32) -> String {
        let (mut sent, mut skipped) = (0, 0);
        for _ in 0..times {
            if self.breaker.admit() {
                sent += 1;
                self.breaker.record(facts.attempt());
            } else {
                skipped += 1;
            }
        }
        let mut text = String::new();
        if sent > 0 {
            write!(text, "{sent} admitted ({:?}); ", facts.attempt()).unwrap();
        }
        if skipped > 0 {
            write!(text, "{skipped} skipped; ").unwrap();
        }
        text + &self.state()
    }
}

impl Runner for BreakerRunner {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Result<String, Box<dyn Error>> {
        let mut args = command.consume_args();
        let mut number = |key: &str, default: Option<u64>| -> Result<u64, Box<dyn Error>> {
            match (args.take_key(key), default) {
                (Some(value), _) => Ok(value.parse()?),
                (None, Some(default)) => Ok(default),
                (None, None) => Err(format!("{key} is missing").into()),
            }
        };
        let line = match command.name.as_str() {
            "breaker" => {
                let trip = u32::try_from(number("trip", Some(3))?)?;
                self.breaker = Breaker::new(trip, number("cooldown", Some(256))?);
                self.state()
            }
            "round" => {
                let times = u32::try_from(number("times", Some(1))?)?;
                let needed = u32::try_from(number("needed", Some(0))?)?;
                let drafted = u32::try_from(number("drafted", Some(0))?)?;
                let what = args.next_pos().ok_or("a round of which kind?")?;
                let facts = facts(what, needed, drafted)?;
                self.rounds(facts, times)
            }
            "lost" => {
                self.backoff.failed(Duration::from_secs(number("at", None)?));
                let at = self.backoff.not_before().expect("a failure sets one");
                format!("next attempt at {} s", at.as_secs())
            }
            "greeted" => {
                self.backoff.succeeded();
                "backoff reset".into()
            }
            "connect" => {
                let now = Duration::from_secs(number("at", None)?);
                if self.backoff.may_connect(now) { "tried" } else { "waits" }.into()
            }
            other => return Err(format!("no command {other:?}").into()),
        };
        args.reject_next()?;
        Ok(line)
    }
}

//! A stage in a process of its own: it can be ended when it takes too long, and a device that a kernel has
//! thrown off is whole again for the next stage.
//!
//! A child leads a process group, so that what it started itself ends with it: a sanitizer runs this program
//! once more. Such a group does not hear of the terminal's Ctrl-C, which therefore ends the running child
//! from here.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::signals;

/// Pause between two looks at a running child.
const LOOK: Duration = Duration::from_millis(10);

/// The signal that ends this process.
static SIGNAL: OnceLock<&str> = OnceLock::new();

/// From now on a signal ends children instead of this process; [`interrupted`] names it.
pub(super) fn end_by_signals() -> io::Result<()> {
    // There is only one first signal.
    signals::first(|name| SIGNAL.set(name).unwrap_or_default())
}

/// The signal that came, if one did.
pub(super) fn interrupted() -> Option<&'static str> {
    SIGNAL.get().copied()
}

/// How a child ended.
pub(super) enum Ended {
    /// By itself; what it wrote to stdout.
    Exited(ExitStatus, String),
    /// It was killed, at the time limit or because a signal came.
    Killed,
}

/// Runs `command` for at most `limit`. Its stderr is this process's.
pub(super) fn run(command: &mut Command, limit: Duration) -> io::Result<Ended> {
    // Nothing is begun after a signal: a stage may have several children.
    if interrupted().is_some() {
        return Ok(Ended::Killed);
    }
    let started = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    let mut stdout = child.stdout.take();
    let reader = thread::spawn(move || {
        let mut text = Vec::new();
        // What was read before an error is all there is.
        let _ = stdout.as_mut().map(|out| out.read_to_end(&mut text));
        String::from_utf8_lossy(&text).into_owned()
    });
    match wait(&mut child, started, limit)? {
        Some(status) => Ok(Ended::Exited(status, reader.join().unwrap_or_default())),
        None => {
            // What left the group may still hold the pipe: nobody waits for the reader.
            drop(reader);
            Ok(Ended::Killed)
        }
    }
}

/// Waits for the end, at most until the limit or a signal; then the child's group is killed.
fn wait(child: &mut Child, started: Instant, limit: Duration) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if started.elapsed() >= limit || interrupted().is_some() {
            // It has not been waited for, so that the number is still its own.
            kill_process_group(Pid::from_child(child), Signal::KILL)?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_kept_and_a_child_that_hangs_is_ended() {
        let limit = Duration::from_secs(30);
        let ended = run(Command::new("sh").args(["-c", "echo said; exit 3"]), limit).unwrap();
        let Ended::Exited(status, text) = ended else { panic!("it ends by itself") };
        assert_eq!((status.code(), text.as_str()), (Some(3), "said\n"));
        let ended = run(Command::new("sleep").arg("60"), Duration::from_millis(50)).unwrap();
        assert!(matches!(ended, Ended::Killed));
    }

    #[test]
    fn what_a_child_has_started_ends_with_it() {
        let (mut said, says) = io::pipe().unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", "(sleep 20; echo late >&2) & wait"]).stderr(says);
        assert!(matches!(run(&mut shell, Duration::from_millis(500)).unwrap(), Ended::Killed));
        drop(shell);
        // Ends when nobody holds the other end any more.
        let mut text = String::new();
        said.read_to_string(&mut text).unwrap();
        assert_eq!(text, "");
    }
}

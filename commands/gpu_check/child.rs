//! A stage in a process of its own: it can be ended when it takes too long, and a device that a kernel has
//! thrown off is whole again for the next stage.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Pause between two looks at a running child.
const LOOK: Duration = Duration::from_millis(10);

/// How a child ended.
pub(super) enum Ended {
    /// By itself; what it wrote to stdout.
    Exited(ExitStatus, String),
    /// It was killed at the time limit.
    TimedOut,
}

/// Runs `command` for at most `limit`. Its stderr is this process's.
pub(super) fn run(command: &mut Command, limit: Duration) -> io::Result<Ended> {
    let started = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
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
            // A child of the child may still hold the pipe: nobody waits for the reader.
            drop(reader);
            Ok(Ended::TimedOut)
        }
    }
}

/// Waits for the end, at most until the limit; then the child is killed.
fn wait(child: &mut Child, started: Instant, limit: Duration) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if started.elapsed() >= limit {
            child.kill()?;
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
        assert!(matches!(ended, Ended::TimedOut));
    }
}

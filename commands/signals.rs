//! The signals that end a program, where that takes more than ending.

use std::io;
use std::thread;

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// From now on SIGINT, SIGTERM and SIGHUP end nothing; the name of the first one is given to `then`, on a
/// thread of its own.
pub(crate) fn first(then: impl FnOnce(&'static str) + Send + 'static) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let inside = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(inside);
    let body = move || {
        then(runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => "SIGINT",
                _ = terminate.recv() => "SIGTERM",
                _ = hangup.recv() => "SIGHUP",
            }
        }));
    };
    thread::Builder::new().name("signals".into()).spawn(body)?;
    Ok(())
}

//! Listeners that a supervisor has opened: socket activation as systemd does it (`LISTEN_FDS`, `LISTEN_PID`,
//! `LISTEN_FDNAMES`, see sd_listen_fds(3)).
//!
//! A passed socket takes the place of the listeners that flags name for its job. It stays open while a
//! worker restarts: clients wait then instead of being refused.

use dspark::transport::Listener;
use listenfd::ListenFd;

use crate::exit::{Code, Failure, OrExit};

/// Listeners by job; empty where none was passed.
#[derive(Default)]
pub(crate) struct Passed {
    pub(crate) drafting: Vec<Listener>,
    pub(crate) control: Option<Listener>,
    pub(crate) metrics: Option<Listener>,
}

impl Passed {
    /// Takes what was passed to this process. Only the first call finds it.
    pub(crate) fn take() -> Result<Self, Failure> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut sockets = ListenFd::from_env();
        let mut names = names.split(':');
        let mut passed = Self::default();
        for index in 0..sockets.len() {
            let name = names.next().unwrap_or_default();
            let refuse = |what: String| {
                Failure::new(Code::Usage, format!("passed socket {index} ({name:?}): {what}"))
            };
            let socket = sockets.take_tcp_listener(index).map_err(|e| refuse(e.to_string()))?;
            let socket = socket.ok_or_else(|| refuse("is taken already".into()))?;
            let listener = Listener::adopt(socket).or_exit(Code::Usage)?;
            tracing::info!(name, address = %listener.local(), "socket passed by the supervisor");
            let other = match name {
                "drafting" => {
                    passed.drafting.push(listener);
                    continue;
                }
                "control" => passed.control.replace(listener),
                "metrics" => passed.metrics.replace(listener),
                _ => {
                    let known = "FileDescriptorName= must be drafting, control or metrics";
                    return Err(refuse("nobody knows what it is for".into()).hint(known));
                }
            };
            if other.is_some() {
                return Err(refuse("there is one of this name already".into()));
            }
        }
        Ok(passed)
    }
}

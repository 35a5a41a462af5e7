//! Whether a worker could listen, and whether one listens already.

use std::time::Duration;

use dspark::transport::{Endpoint, ListenError, Listener};

use super::{Check, Verdict};
use crate::query::Query;

/// How long a worker may take to answer PING.
const PING_TIME: Duration = Duration::from_millis(500);

/// A listener that `serve` would open.
pub(super) struct Wanted {
    /// Its URL, as it was given.
    pub(super) url: String,
    /// Whether it may be connected to without harm.
    pub(super) control: bool,
}

const NAME: &str = "port";

/// Binds every listener for a moment.
pub(super) fn check(listeners: &[Wanted]) -> Vec<Check> {
    if listeners.is_empty() {
        return vec![Check::new(
            NAME,
            Verdict::Skipped,
            "the environment names none that is valid",
        )];
    }
    listeners.iter().map(one).collect()
}

fn one(wanted: &Wanted) -> Check {
    let url = &wanted.url;
    let failed = |why: String| Check::new(NAME, Verdict::Failed, format!("{url}: {why}"));
    let endpoint: Endpoint = match url.parse() {
        Ok(endpoint) => endpoint,
        Err(error) => return failed(format!("{error}")),
    };
    let address = match endpoint.listen_address() {
        Ok(address) => address,
        Err(error) => return failed(error.to_string()),
    };
    match Listener::bind(address) {
        Ok(_) => Check::new(NAME, Verdict::Ok, format!("{url} is free")),
        Err(ListenError::InUse(_)) if wanted.control => match answers(&endpoint) {
            Some(name) => Check::new(
                NAME,
                Verdict::Ok,
                format!("{url} is held by a worker that answers: {name}"),
            ),
            None => Check::new(NAME, Verdict::Warn, format!("{url} is held by another program"))
                .hint("'ss -ltnp' names it; --control gives a worker another port"),
        },
        Err(ListenError::InUse(_)) => Check::new(
            NAME,
            Verdict::Warn,
            format!("{url} is held; not asked, connecting would drop a live client"),
        )
        .hint("a worker that is running, see its control port; or --listen gives another port"),
        Err(error) if error.is_not_here_yet() => {
            Check::new(NAME, Verdict::Warn, format!("{url}: no interface has this address"))
                .hint("bring the link up; 'serve --bind-wait TIME' waits for it")
        }
        Err(error) => failed(error.to_string()),
    }
}

/// The name and checkpoint of the worker that listens there, if it is one.
fn answers(endpoint: &Endpoint) -> Option<String> {
    let mut query = Query::new(endpoint.clone(), PING_TIME).ok()?;
    query.ping().ok()?;
    let stats = query.stats().ok()?;
    let text = |key: &str| {
        let text = stats[key].as_str().unwrap_or("n/a");
        text.chars().filter(|c| !c.is_control()).collect::<String>()
    };
    Some(format!("{} {}, checkpoint {}", text("worker"), text("version"), text("checkpoint")))
}

//! Keeping tools away from drafting listeners.
//!
//! Whoever is accepted by a drafting listener displaces its client before saying a word (contract §7.5,
//! contract-notes D2), and nothing on the wire tells the listeners apart before that. So a URL is compared
//! with what is known beforehand: the default port, this environment, the environment files of the services
//! on this host, and what the workers behind their control listeners say of themselves.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use dspark::transport::{Endpoint, Scheme};

use crate::args::{AskingArgs, CONTROL, DRAFTING};
use crate::exit::{Code, Failure};
use crate::query::Query;

/// Where `packaging/dspark@.service` has its environment files.
const SERVICES: &str = "/etc/dspark";
/// A control listener on this host answers in far less; a URL is not worth more.
const ASKING_TIME: Duration = Duration::from_millis(300);
/// The two settings that matter here.
const LISTEN: &str = "DSPARK_LISTEN";
const CONTROL_SETTING: &str = "DSPARK_CONTROL";

/// A drafting listener, and how it is known.
struct Known {
    listener: Endpoint,
    /// Who says so.
    source: String,
    /// What to ask instead.
    control: String,
}

/// Refuses a URL that is known to be a drafting listener, unless `--takeover` was given.
pub(crate) fn check(url: &Endpoint, asking: &AskingArgs) -> Result<(), Failure> {
    if url.scheme != Scheme::Tcp || asking.takeover {
        return Ok(());
    }
    if has_drafting_port(url) {
        return Err(refusal(format!("{url} is a drafting port"), CONTROL));
    }
    let mut settings = vec![Settings::of_environment()];
    settings.extend(Settings::of_services(Path::new(SERVICES)));
    let known: Vec<Known> = settings.iter().flat_map(Settings::known).collect();
    refuse(url, &known)?;
    // Last, what workers say of themselves, asked where settings put control listeners.
    let mut controls: Vec<Endpoint> = vec![CONTROL.parse().expect("a constant URL")];
    controls.extend(settings.into_iter().flat_map(|settings| settings.control));
    let mut asked: Vec<Endpoint> = vec![url.clone()];
    for control in controls {
        let harmless = !has_drafting_port(&control) && refuse(&control, &known).is_ok();
        if harmless && !asked.contains(&control) {
            refuse(url, &said_by(&control, asking.timeout.min(ASKING_TIME)))?;
            asked.push(control);
        }
    }
    Ok(())
}

fn has_drafting_port(url: &Endpoint) -> bool {
    let drafting: Endpoint = DRAFTING.parse().expect("a constant URL");
    url.port == drafting.port
}

fn refuse(url: &Endpoint, known: &[Known]) -> Result<(), Failure> {
    // A name that does not resolve is nobody's; connecting says so.
    let addresses = url.resolve().unwrap_or_default();
    match known.iter().find(|known| is_one_of(&known.listener, &addresses)) {
        Some(Known { source, control, .. }) => {
            Err(refusal(format!("{url} is a drafting listener ({source})"), control))
        }
        None => Ok(()),
    }
}

fn refusal(what: String, control: &str) -> Failure {
    Failure::new(Code::Usage, format!("{what}: connecting drops the live client"))
        .hint(format!("ask the control listener (default {control}), or give --takeover"))
}

/// Where the worker behind a control listener says that it drafts; nothing where none answers.
fn said_by(control: &Endpoint, timeout: Duration) -> Vec<Known> {
    let stats = Query::new(control.clone(), timeout).map(|mut query| query.stats());
    let Ok(Ok(stats)) = stats else { return Vec::new() };
    let listeners = stats["listeners"].as_array().into_iter().flatten();
    let urls = listeners.filter_map(|listener| listener["listen"].as_str()?.parse().ok());
    let known = |listener| Known {
        listener,
        source: format!("the worker at {control} says so"),
        control: control.to_string(),
    };
    urls.map(known).collect()
}

fn is_one_of(listener: &Endpoint, addresses: &[SocketAddr]) -> bool {
    let plain = |address: SocketAddr| (address.ip().to_canonical(), address.port());
    let listener = listener.listen_address().map(plain);
    listener.is_ok_and(|listener| addresses.iter().any(|address| plain(*address) == listener))
}

/// Listeners as a worker's settings name them.
#[derive(Debug, PartialEq, Eq)]
struct Settings {
    /// Where they are set, in words.
    origin: String,
    drafting: Vec<Endpoint>,
    control: Vec<Endpoint>,
}

impl Settings {
    fn of_environment() -> Self {
        let get = |name: &str| std::env::var(name).ok();
        Self::new("this environment".into(), get)
    }

    fn known(&self) -> impl Iterator<Item = Known> {
        let control = self.control.first().map_or(CONTROL.to_owned(), Endpoint::to_string);
        self.drafting.iter().map(move |listener| Known {
            listener: listener.clone(),
            source: format!("{LISTEN} of {}", self.origin),
            control: control.clone(),
        })
    }

    /// Of every `*.env` file that can be read, by name.
    fn of_services(folder: &Path) -> Vec<Self> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "env"));
        paths.sort();
        let settings = paths.iter().filter_map(|path| {
            let text = std::fs::read_to_string(path).ok()?;
            Some(Self::new(path.display().to_string(), |name| value(&text, name)))
        });
        settings.collect()
    }

    fn new(origin: String, get: impl Fn(&str) -> Option<String>) -> Self {
        let urls = |name: &str| -> Vec<Endpoint> {
            let text = get(name).unwrap_or_default();
            text.split(',').filter_map(|url| url.trim().parse().ok()).collect()
        };
        Self { origin, drafting: urls(LISTEN), control: urls(CONTROL_SETTING) }
    }
}

/// The last value of a variable in an environment file, without quotes around it.
fn value(text: &str, name: &str) -> Option<String> {
    let mut set = text.lines().filter_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='));
    Some(set.next_back()?.trim().trim_matches(['"', '\'']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(texts: &[&str]) -> Vec<Endpoint> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn environment_files_name_the_listeners_of_their_services() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("b.env", "DSPARK_LISTEN='tcp://10.0.0.1:1,tcp://10.0.0.1:2'\nDSPARK_CONTROL=off\n");
        write(
            "a.env",
            "#DSPARK_LISTEN=tcp://10.0.0.1:9\nDSPARK_CONTROL=\"tcp://127.0.0.1:3\"\n\
             DSPARK_LISTEN=tcp://10.0.0.1:4\n DSPARK_LISTEN=tcp://10.0.0.1:5\r\n",
        );
        write("a.env.old", "DSPARK_LISTEN=tcp://10.0.0.1:6\n");
        let found = Settings::of_services(folder.path());
        assert_eq!(found.len(), 2);
        assert!(found[0].origin.ends_with("/a.env"), "{found:?}");
        assert_eq!(found[0].drafting, urls(&["tcp://10.0.0.1:5"]));
        assert_eq!(found[0].control, urls(&["tcp://127.0.0.1:3"]));
        assert_eq!(found[1].drafting, urls(&["tcp://10.0.0.1:1", "tcp://10.0.0.1:2"]));
        assert_eq!(found[1].control, []);
        assert_eq!(Settings::of_services(&folder.path().join("none")), []);
    }

    #[test]
    fn a_listener_is_known_by_its_address_however_it_is_written() {
        let one_of = |listener: &str, address: &str| {
            is_one_of(&listener.parse().unwrap(), &[address.parse().unwrap()])
        };
        assert!(one_of("tcp://127.0.0.1:5", "127.0.0.1:5"));
        assert!(one_of("tcp://[::ffff:127.0.0.1]:5", "127.0.0.1:5"));
        assert!(!one_of("tcp://127.0.0.1:5", "127.0.0.1:6"));
        assert!(!one_of("tcp://127.0.0.2:5", "127.0.0.1:5"));
        assert!(!one_of("tcp://name:5", "127.0.0.1:5"));
    }
}

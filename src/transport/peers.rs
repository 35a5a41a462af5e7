//! Whose connections a drafting listener takes: an allow-list of addresses and networks.
//!
//! The port has no authentication and the newest connection wins (contract §7.5), so a stranger must be
//! closed at accept, before it displaces anybody. Nothing here opens a socket.

use std::collections::HashMap;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::{Duration, Instant};

use ipnet::IpNet;

/// A stranger is reported at most once in this time.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// Strangers remembered for that; more than these share one memory, so a flood costs no more.
const STRANGERS_MAX: usize = 256;

/// One `ADDR` or `CIDR` of an allow-list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRule(IpNet);

/// Why a text is not a [`PeerRule`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is neither an IP address nor a network like 10.202.28.0/30")]
pub struct PeerRuleError(String);

impl FromStr for PeerRule {
    type Err = PeerRuleError;

    fn from_str(text: &str) -> Result<Self, PeerRuleError> {
        let address = |text: &str| text.parse::<IpAddr>().ok().map(IpNet::from);
        let net = address(text).or_else(|| text.parse().ok());
        net.map(Self).ok_or_else(|| PeerRuleError(text.into()))
    }
}

impl std::fmt::Display for PeerRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() {
            self.0.addr().fmt(f)
        } else {
            self.0.fmt(f)
        }
    }
}

/// An allow-list with its memory of strangers. Empty, it allows everybody.
#[derive(Debug, Default)]
pub struct Peers {
    rules: Vec<PeerRule>,
    reported: HashMap<IpAddr, Instant>,
}

/// What an address is to the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// It may connect.
    Allowed,
    /// It may not; `report` is false when that has been said within the last minute.
    Stranger {
        /// Whether to log it.
        report: bool,
    },
}

impl Peers {
    /// The list of these rules.
    pub fn new(rules: Vec<PeerRule>) -> Self {
        Self { rules, reported: HashMap::new() }
    }

    /// Whether nobody is kept out.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Judges an address; an IPv4 address inside IPv6 counts as the IPv4 one.
    pub fn judge(&mut self, address: IpAddr, now: Instant) -> Peer {
        let address = address.to_canonical();
        if self.rules.is_empty() || self.rules.iter().any(|rule| rule.0.contains(&address)) {
            return Peer::Allowed;
        }
        let known = self.reported.get(&address);
        if known.is_some_and(|at| now.duration_since(*at) < REPORT_EVERY) {
            return Peer::Stranger { report: false };
        }
        if self.reported.len() >= STRANGERS_MAX {
            self.reported.retain(|_, at| now.duration_since(*at) < REPORT_EVERY);
        }
        let room = self.reported.len() < STRANGERS_MAX;
        if room {
            self.reported.insert(address, now);
        }
        Peer::Stranger { report: room }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(rules: &[&str]) -> Peers {
        Peers::new(rules.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn allowed(peers: &mut Peers, address: &str) -> bool {
        peers.judge(address.parse().unwrap(), Instant::now()) == Peer::Allowed
    }

    #[test]
    fn an_empty_list_allows_everybody() {
        assert!(allowed(&mut Peers::default(), "203.0.113.9"));
    }

    #[test]
    fn addresses_and_networks_of_both_families_are_matched() {
        let mut list = peers(&["10.202.28.2", "192.0.2.0/30", "fd00::/64"]);
        for address in ["10.202.28.2", "::ffff:10.202.28.2", "192.0.2.3", "fd00::1"] {
            assert!(allowed(&mut list, address), "{address}");
        }
        for address in ["10.202.28.3", "192.0.2.4", "fd00:1::1", "::1", "127.0.0.1"] {
            assert!(!allowed(&mut list, address), "{address}");
        }
    }

    #[test]
    fn a_stranger_is_reported_once_a_minute_and_a_flood_of_them_costs_a_bounded_memory() {
        let mut list = peers(&["10.0.0.1"]);
        let start = Instant::now();
        let mut reported = |address: &str, seconds: u64| {
            let now = start + Duration::from_secs(seconds);
            list.judge(address.parse().unwrap(), now) == Peer::Stranger { report: true }
        };
        assert!(reported("10.0.0.2", 0));
        assert!(!reported("10.0.0.2", 59));
        assert!(reported("10.0.0.3", 59));
        assert!(reported("10.0.0.2", 60));
        let flood = (0..1000u32).filter(|n| reported(&format!("10.1.{}.{}", n / 250, n % 250), 61));
        assert!(flood.count() <= STRANGERS_MAX);
    }

    #[test]
    fn rules_print_what_they_were_parsed_from() {
        for text in ["10.202.28.2", "10.202.28.0/30", "fd00::/64", "::1"] {
            assert_eq!(text.parse::<PeerRule>().unwrap().to_string(), text);
        }
        for text in ["", "spark-a", "10.0.0.0/33", "10.0.0.1:5"] {
            assert!(text.parse::<PeerRule>().is_err(), "{text}");
        }
    }
}

//! Who is connected to which drafting listener, and how far away: the `listeners` of STATS.
//!
//! The drafting thread notes who comes and goes. The kernel is asked for round trips only by whoever
//! answers STATS or a scrape, on the control thread.

use std::net::SocketAddr;
use std::time::Instant;

use serde_json::{Map, Value, json};

use crate::transport::{Endpoint, TcpTimes, tcp_times};

/// The drafting listeners in the order of the command line.
#[derive(Clone, Debug, Default)]
pub struct Seats(Vec<Seated>);

#[derive(Clone, Copy, Debug)]
struct Seated {
    listen: SocketAddr,
    client: Option<Client>,
}

#[derive(Clone, Copy, Debug)]
struct Client {
    peer: SocketAddr,
    since: Instant,
    times: Option<TcpTimes>,
}

impl Seats {
    /// Empty seats of these listeners.
    pub fn of(listeners: impl IntoIterator<Item = SocketAddr>) -> Self {
        let empty = |listen| Seated { listen, client: None };
        Self(listeners.into_iter().map(empty).collect())
    }

    /// Notes who is served by the listener of this index now.
    pub fn take(&mut self, index: usize, peer: SocketAddr) {
        self.0[index].client = Some(Client { peer, since: Instant::now(), times: None });
    }

    /// Notes that nobody is.
    pub fn leave(&mut self, index: usize) {
        self.0[index].client = None;
    }

    /// Asks the kernel how far away everybody is.
    pub fn measure(&mut self) {
        for seat in &mut self.0 {
            if let Some(client) = &mut seat.client {
                client.times = tcp_times(seat.listen, client.peer);
            }
        }
    }

    /// One object a listener; what is not there or was not measured is absent.
    pub fn json(&self) -> Value {
        let seat = |seat: &Seated| {
            let mut doc = json!({ "listen": Endpoint::tcp(seat.listen).to_string() });
            if let Some(client) = &seat.client {
                doc["connection"] = client.json();
            }
            doc
        };
        self.0.iter().map(seat).collect()
    }
}

impl Client {
    fn json(&self) -> Value {
        let mut doc = Map::new();
        doc.insert("peer".into(), self.peer.to_string().into());
        doc.insert("age_s".into(), self.since.elapsed().as_secs_f64().into());
        if let Some(times) = self.times {
            doc.insert("rtt_us".into(), times.rtt_us.into());
            doc.insert("rttvar_us".into(), times.rttvar_us.into());
            if let Some(min_rtt_us) = times.min_rtt_us {
                doc.insert("min_rtt_us".into(), min_rtt_us.into());
            }
            doc.insert("retransmits".into(), times.retransmits.into());
        }
        Value::Object(doc)
    }
}

//! Endpoint URLs: `scheme://host:port[?bind=ADDR]`.
//!
//! `tcp` is built in. `o1tcp` and `o1rdma` are the live link's own transports: they parse, so that a
//! configuration can be shared, and are answered with "not in this build" where a socket would be opened.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// Transport of an endpoint (contract §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// The contract's TCP stub.
    Tcp,
    /// O1's TCP backend.
    O1Tcp,
    /// O1's RDMA RC transport.
    O1Rdma,
}

impl Scheme {
    /// Name in a URL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::O1Tcp => "o1tcp",
            Self::O1Rdma => "o1rdma",
        }
    }
}

/// Where a worker listens or is found. Displays in canonical form: `parse(display(e)) == e`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Transport.
    pub scheme: Scheme,
    /// An address, or on a client a name that is resolved once, at connect.
    pub host: String,
    /// Port; 0 only makes sense for a listener.
    pub port: u16,
    /// Local address of a client, `?bind=`.
    pub bind: Option<IpAddr>,
}

/// Why a text is not an endpoint, or not usable for what it is wanted for. All are usage errors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// No `scheme://`.
    #[error("'{0}' has no scheme; write tcp://HOST:PORT")]
    NoScheme(String),
    /// Another scheme.
    #[error("unknown scheme '{0}'; known are tcp, o1tcp and o1rdma")]
    Scheme(String),
    /// Not `host:port`.
    #[error("'{0}' is not HOST:PORT")]
    HostPort(String),
    /// Not a port number.
    #[error("'{0}' is not a port")]
    Port(String),
    /// Port 0 on a client.
    #[error("port 0 can only be listened on")]
    PortZero,
    /// A key that does not exist here.
    #[error("unknown option '{0}'; known is bind=ADDR")]
    Key(String),
    /// A key given twice.
    #[error("option '{0}' is given twice")]
    Repeated(String),
    /// Not an address.
    #[error("'{0}' is not an IP address")]
    Address(String),
    /// `bind=` on a listener.
    #[error("a listener has no bind= option; its host is the address")]
    BindOnListener,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let (scheme, rest) =
            text.split_once("://").ok_or_else(|| EndpointError::NoScheme(text.into()))?;
        let scheme = match scheme {
            "tcp" => Scheme::Tcp,
            "o1tcp" => Scheme::O1Tcp,
            "o1rdma" => Scheme::O1Rdma,
            other => return Err(EndpointError::Scheme(other.into())),
        };
        let (authority, query) = rest.split_once('?').map_or((rest, None), |(a, q)| (a, Some(q)));
        let (host, port) = host_port(authority)?;
        let mut bind = None;
        for option in query.into_iter().flat_map(|q| q.split('&')) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            if key != "bind" {
                return Err(EndpointError::Key(key.into()));
            }
            let address = value.parse().map_err(|_| EndpointError::Address(value.into()))?;
            if bind.replace(address).is_some() {
                return Err(EndpointError::Repeated(key.into()));
            }
        }
        Ok(Self { scheme, host, port, bind })
    }
}

/// Splits `HOST:PORT`; an IPv6 host stands in brackets and is kept without them.
fn host_port(authority: &str) -> Result<(String, u16), EndpointError> {
    let bad = || EndpointError::HostPort(authority.into());
    let (host, port) = authority.rsplit_once(':').ok_or_else(bad)?;
    let host = match host.strip_prefix('[').map(|h| h.strip_suffix(']')) {
        Some(Some(inner)) if inner.parse::<std::net::Ipv6Addr>().is_ok() => inner,
        Some(_) => return Err(bad()),
        None if host.is_empty() || host.contains([':', '@', '/', '[', ']']) => return Err(bad()),
        None => host,
    };
    let port = port.parse().map_err(|_| EndpointError::Port(port.into()))?;
    Ok((host.to_owned(), port))
}

impl Endpoint {
    /// A plain TCP endpoint.
    pub fn tcp(address: SocketAddr) -> Self {
        Self {
            scheme: Scheme::Tcp,
            host: address.ip().to_string(),
            port: address.port(),
            bind: None,
        }
    }

    /// The address to listen on.
    ///
    /// # Errors
    /// A name instead of an address, or `bind=`.
    pub fn listen_address(&self) -> Result<SocketAddr, EndpointError> {
        if self.bind.is_some() {
            return Err(EndpointError::BindOnListener);
        }
        let ip = self.host.parse().map_err(|_| EndpointError::Address(self.host.clone()))?;
        Ok(SocketAddr::new(ip, self.port))
    }

    /// Checks what can be checked of a client's endpoint without a socket.
    ///
    /// # Errors
    /// Port 0.
    pub fn check_client(&self) -> Result<(), EndpointError> {
        if self.port == 0 { Err(EndpointError::PortZero) } else { Ok(()) }
    }

    /// Addresses of the host, resolved now; those of the family of `bind` when that is given.
    ///
    /// # Errors
    /// What the resolver says, or that no address is left.
    pub fn resolve(&self) -> std::io::Result<Vec<SocketAddr>> {
        let wanted = |a: &SocketAddr| self.bind.is_none_or(|b| b.is_ipv4() == a.is_ipv4());
        let found: Vec<_> =
            (self.host.as_str(), self.port).to_socket_addrs()?.filter(wanted).collect();
        if found.is_empty() {
            return Err(std::io::Error::new(
                std::io::ErrorKind::AddrNotAvailable,
                "no address of this host fits",
            ));
        }
        Ok(found)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{}://{open}{}{close}:{}", self.scheme.name(), self.host, self.port)?;
        match self.bind {
            Some(bind) => write!(f, "?bind={bind}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_print_what_they_were_parsed_from() {
        for text in [
            "tcp://127.0.0.1:18620",
            "tcp://[::1]:18620",
            "o1rdma://10.202.28.1:18620?bind=10.202.28.2",
            "o1tcp://spark-a:18620",
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn anything_else_is_refused_with_its_reason() {
        let error = |text: &str| text.parse::<Endpoint>().unwrap_err().to_string();
        assert!(error("127.0.0.1:1").contains("no scheme"));
        assert!(error("http://h:1").contains("unknown scheme 'http'"));
        assert!(error("tcp://h").contains("not HOST:PORT"));
        assert!(error("tcp://::1:5").contains("not HOST:PORT"));
        assert!(error("tcp://user@h:5").contains("not HOST:PORT"));
        assert!(error("tcp://h:99999").contains("not a port"));
        assert!(error("tcp://h:1?x=2").contains("unknown option 'x'"));
        assert!(error("tcp://h:1?bind=a").contains("not an IP address"));
        assert!(error("tcp://h:1?bind=::1&bind=::1").contains("given twice"));
    }

    #[test]
    fn a_listener_takes_an_address_and_no_bind() {
        let parse = |text: &str| text.parse::<Endpoint>().unwrap();
        assert!(parse("tcp://0.0.0.0:0").listen_address().is_ok());
        assert!(parse("tcp://localhost:1").listen_address().is_err());
        assert!(parse("tcp://10.0.0.1:1?bind=10.0.0.2").listen_address().is_err());
        assert!(parse("tcp://localhost:0").check_client().is_err());
    }
}

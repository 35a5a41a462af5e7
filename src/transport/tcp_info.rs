//! What the kernel has measured of a TCP connection: round trips and retransmissions.
//!
//! The kernel is asked by the connection's two addresses over `NETLINK_SOCK_DIAG` (sock_diag(7)), so that
//! no descriptor of the connection is needed and its thread is not disturbed. Where there is no such
//! question, be it another system, a sandbox or another transport, there is no answer.

use std::net::SocketAddr;

/// Times of one connection as this end's kernel sees them.
///
/// A round trip runs from a segment sent here to its acknowledgement. A client that computes between two
/// requests acknowledges a reply with its next request, or after its delay of 40 ms and more: `rtt_us`
/// follows that. `min_rtt_us` is the link: the kernel leaves acknowledgements that may have been delayed out
/// of it (`tcp_update_rtt_min` of net/ipv4/tcp_input.c). A reply fits one segment, whose acknowledgement is
/// always of that kind, so the minimum only falls while a connection lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpTimes {
    /// Smoothed round trip, µs.
    pub rtt_us: u32,
    /// Its smoothed mean deviation, µs.
    pub rttvar_us: u32,
    /// The smallest round trip since the connection was opened, µs; none before the first acknowledgement,
    /// and on a kernel before Linux 4.6.
    pub min_rtt_us: Option<u32>,
    /// Segments sent again since the connection began.
    pub retransmits: u32,
}

/// Asks for the connection between a local address and its peer. Takes some ten µs and does not wait.
#[cfg(target_os = "linux")]
pub fn tcp_times(local: SocketAddr, peer: SocketAddr) -> Option<TcpTimes> {
    diag::ask(local, peer)
}

/// Asks for the connection between a local address and its peer: there is no answer on this system.
#[cfg(not(target_os = "linux"))]
pub fn tcp_times(_local: SocketAddr, _peer: SocketAddr) -> Option<TcpTimes> {
    None
}

#[cfg(target_os = "linux")]
mod diag {
    use std::net::{IpAddr, SocketAddr};
    use std::os::fd::OwnedFd;

    use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
    };
    use zerocopy::byteorder::native_endian::{U16, U32};
    use zerocopy::byteorder::network_endian::U16 as Port;
    use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

    use super::TcpTimes;

    /// `SOCK_DIAG_BY_FAMILY` of linux/sock_diag.h.
    const BY_FAMILY: u16 = 20;
    /// `NLM_F_REQUEST` of linux/netlink.h.
    const REQUEST: u16 = 1;
    /// `IPPROTO_TCP`.
    const TCP: u8 = 6;
    /// `INET_DIAG_INFO` of linux/inet_diag.h: the attribute that holds a `struct tcp_info`.
    const INFO: u16 = 2;
    /// `INET_DIAG_NOCOOKIE`: any socket of these addresses.
    const NO_COOKIE: U32 = U32::from_bytes([0xff; 4]);
    /// Bytes of an answer: its header and a dozen attributes, `struct tcp_info` the longest.
    const ANSWER_BYTES_MAX: usize = 4096;
    /// Offsets in `struct tcp_info` of linux/tcp.h, which only ever grows at its end.
    const RTT: usize = 68;
    const RTTVAR: usize = 72;
    const TOTAL_RETRANS: usize = 100;
    const MIN_RTT: usize = 148;
    /// What the kernel says for a minimum of no samples.
    const NO_SAMPLE: u32 = u32::MAX;

    /// `struct nlmsghdr` of linux/netlink.h.
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    #[repr(C)]
    struct Header {
        len: U32,
        kind: U16,
        flags: U16,
        seq: U32,
        port: U32,
    }

    /// `struct inet_diag_sockid` of linux/inet_diag.h.
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    #[repr(C)]
    struct SocketId {
        local_port: Port,
        peer_port: Port,
        local: [u8; 16],
        peer: [u8; 16],
        interface: U32,
        cookie: [U32; 2],
    }

    /// A header and a `struct inet_diag_req_v2`.
    #[derive(IntoBytes, Immutable, Unaligned)]
    #[repr(C)]
    struct Question {
        header: Header,
        family: u8,
        protocol: u8,
        attributes: u8,
        _pad: u8,
        states: U32,
        id: SocketId,
    }

    /// A header and a `struct inet_diag_msg`; attributes follow.
    #[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
    #[repr(C)]
    struct Answer {
        header: Header,
        _family: u8,
        _state: u8,
        _timer: u8,
        _retrans: u8,
        id: SocketId,
        _queues: [U32; 5],
    }

    /// `struct rtattr` of linux/rtnetlink.h: a length that includes itself, and a kind.
    #[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
    #[repr(C)]
    struct Attribute {
        len: U16,
        kind: U16,
    }

    pub(super) fn ask(local: SocketAddr, peer: SocketAddr) -> Option<TcpTimes> {
        let kernel = SocketAddrNetlink::new(0, 0);
        let socket = open().ok()?;
        sendto(&socket, question(local, peer).as_bytes(), SendFlags::empty(), &kernel).ok()?;
        let mut buffer = [0; ANSWER_BYTES_MAX];
        // The answer was queued before the question's call returned.
        let (_, len) = recv(&socket, &mut buffer[..], RecvFlags::DONTWAIT).ok()?;
        read(buffer.get(..len)?, peer.port())
    }

    /// A socket to ask on.
    pub(super) fn open() -> rustix::io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC;
        socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG))
    }

    fn question(local: SocketAddr, peer: SocketAddr) -> Question {
        let bytes = u32::try_from(size_of::<Question>()).expect("72 bytes");
        let (family, local_ip) = address(local.ip());
        let (_, peer_ip) = address(peer.ip());
        let interface = match peer {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(v6) => v6.scope_id(),
        };
        Question {
            header: Header {
                len: bytes.into(),
                kind: BY_FAMILY.into(),
                flags: REQUEST.into(),
                seq: 1.into(),
                port: 0.into(),
            },
            family,
            protocol: TCP,
            attributes: 1 << (INFO - 1),
            _pad: 0,
            states: u32::MAX.into(),
            id: SocketId {
                local_port: local.port().into(),
                peer_port: peer.port().into(),
                local: local_ip,
                peer: peer_ip,
                interface: interface.into(),
                cookie: [NO_COOKIE; 2],
            },
        }
    }

    /// Family and address; an IPv4 address inside IPv6 counts as the IPv4 one.
    fn address(ip: IpAddr) -> (u8, [u8; 16]) {
        let family = |family: AddressFamily| u8::try_from(family.as_raw()).expect("2 or 10");
        match ip.to_canonical() {
            IpAddr::V4(v4) => {
                let mut octets = [0; 16];
                octets[..4].copy_from_slice(&v4.octets());
                (family(AddressFamily::INET), octets)
            }
            IpAddr::V6(v6) => (family(AddressFamily::INET6), v6.octets()),
        }
    }

    /// The times in an answer about a connection to this port. A connection that has ended meanwhile is
    /// answered with its listener, or an error.
    fn read(answer: &[u8], peer_port: u16) -> Option<TcpTimes> {
        let (head, mut rest) = Answer::ref_from_prefix(answer).ok()?;
        if head.header.kind != BY_FAMILY || head.id.peer_port != peer_port {
            return None;
        }
        loop {
            let (attribute, _) = Attribute::ref_from_prefix(rest).ok()?;
            let len = usize::from(attribute.len.get());
            let value = rest.get(size_of::<Attribute>()..len)?;
            if attribute.kind == INFO {
                return times(value);
            }
            // Attributes begin at multiples of four bytes.
            rest = rest.get(len.next_multiple_of(4)..)?;
        }
    }

    fn times(info: &[u8]) -> Option<TcpTimes> {
        let word = |offset: usize| {
            let (word, _) = U32::read_from_prefix(info.get(offset..)?).ok()?;
            Some(word.get())
        };
        Some(TcpTimes {
            rtt_us: word(RTT)?,
            rttvar_us: word(RTTVAR)?,
            min_rtt_us: word(MIN_RTT).filter(|us| *us != NO_SAMPLE),
            retransmits: word(TOTAL_RETRANS)?,
        })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_short_or_foreign_answer_says_nothing() {
            let mut answer = vec![0; size_of::<Answer>()];
            assert_eq!(read(&answer, 0), None);
            answer[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
            assert_eq!(read(&answer, 0), None, "no attributes");
            answer.extend([0, 0, 0, 0]);
            assert_eq!(read(&answer, 0), None, "an attribute without a length");
            assert_eq!(read(&answer[..20], 0), None, "cut");
        }

        #[test]
        fn a_kernel_without_the_minimum_still_gives_the_rest() {
            let mut info = vec![0; MIN_RTT];
            info[RTT..RTT + 4].copy_from_slice(&250u32.to_ne_bytes());
            info[TOTAL_RETRANS..TOTAL_RETRANS + 4].copy_from_slice(&3u32.to_ne_bytes());
            let old = TcpTimes { rtt_us: 250, rttvar_us: 0, min_rtt_us: None, retransmits: 3 };
            assert_eq!(times(&info), Some(old));
            info.extend(7u32.to_ne_bytes());
            assert_eq!(times(&info), Some(TcpTimes { min_rtt_us: Some(7), ..old }));
        }
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Exchanges a few bytes and asks about both ends.
    fn times_on(listener: &TcpListener) -> [Option<TcpTimes>; 2] {
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut served, peer) = listener.accept().unwrap();
        for _ in 0..3 {
            client.write_all(b"x").unwrap();
            served.read_exact(&mut [0]).unwrap();
            served.write_all(b"y").unwrap();
            client.read_exact(&mut [0]).unwrap();
        }
        let local = served.local_addr().unwrap();
        [tcp_times(local, peer), tcp_times(peer, local)]
    }

    #[test]
    fn both_ends_of_a_connection_have_times() {
        if let Err(error) = diag::open() {
            eprintln!("skipped: this system has no NETLINK_SOCK_DIAG ({error})");
            return;
        }
        for address in ["127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
            let listener = match TcpListener::bind(address) {
                Ok(listener) => listener,
                Err(error) => {
                    eprintln!("skipped: {address}: {error}");
                    continue;
                }
            };
            for times in times_on(&listener) {
                let times = times.unwrap_or_else(|| panic!("no answer for {address}"));
                assert!((1..1_000_000).contains(&times.rtt_us), "{address}: {times:?}");
                assert!(times.min_rtt_us.unwrap() <= times.rtt_us, "{address}: {times:?}");
            }
        }
    }

    #[test]
    fn a_peer_that_is_not_connected_has_none_although_the_port_is_listened_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        assert_eq!(tcp_times(local, "127.0.0.1:9".parse().unwrap()), None);
    }
}

//! Time limits of a connection, with short ones in place of the worker's (contract-notes D10).

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use dspark::buffer::FrameBuffer;
use dspark::protocol::Op;
use dspark::protocol::control::empty_request;
use dspark::transport::{Connection, Listener, RecvError};
use tokio::time::timeout;

use crate::client::framed;

const FRAME_TIME: Duration = Duration::from_millis(80);

/// Runs a test on both ends of one connection.
fn with_connection<F: Future<Output = ()>>(test: impl FnOnce(Connection, TcpStream) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local();
        let accepting = listener.serve().unwrap();
        let peer = TcpStream::connect(address).unwrap();
        test(accepting.next().await, peer).await;
    });
}

#[test]
fn a_frame_that_has_begun_must_end_in_time() {
    with_connection(async |mut connection, mut peer| {
        let mut buffer = FrameBuffer::new(4096).unwrap();
        // A trickle does not extend the time: it counts from the first byte.
        let trickle = std::thread::spawn(move || {
            for byte in framed(&empty_request(Op::Ping, 1, 0)) {
                if peer.write_all(&[byte]).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(15));
            }
        });
        let received = connection.recv(&mut buffer, FRAME_TIME).await;
        assert!(matches!(received, Err(RecvError::Slow(FRAME_TIME))), "{received:?}");
        drop(connection);
        trickle.join().unwrap();
    });
}

#[test]
fn between_frames_a_connection_may_be_silent() {
    with_connection(async |mut connection, mut peer| {
        let mut buffer = FrameBuffer::new(4096).unwrap();
        let frame = framed(&empty_request(Op::Ping, 1, 0));
        for _ in 0..2 {
            let silence = timeout(3 * FRAME_TIME, connection.recv(&mut buffer, FRAME_TIME));
            assert!(silence.await.is_err(), "nothing was sent");
            peer.write_all(&frame).unwrap();
            assert_eq!(connection.recv(&mut buffer, FRAME_TIME).await.unwrap(), Some(32));
        }
        drop(peer);
        assert_eq!(connection.recv(&mut buffer, FRAME_TIME).await.unwrap(), None);
    });
}

#[test]
fn receiving_goes_on_where_it_was_interrupted() {
    with_connection(async |mut connection, mut peer| {
        let mut buffer = FrameBuffer::new(4096).unwrap();
        let frame = framed(&empty_request(Op::Ping, 9, 3));
        for piece in [&frame[..2], &frame[2..20], &frame[20..35]] {
            peer.write_all(piece).unwrap();
            let long = Duration::from_secs(30);
            let part = timeout(Duration::from_millis(20), connection.recv(&mut buffer, long));
            assert!(part.await.is_err(), "the frame is not whole");
        }
        peer.write_all(&frame[35..]).unwrap();
        assert_eq!(connection.recv(&mut buffer, FRAME_TIME).await.unwrap(), Some(32));
        assert_eq!(buffer.frame(32), &frame[4..]);
        peer.write_all(&frame[..7]).unwrap();
        drop(peer);
        let cut = connection.recv(&mut buffer, FRAME_TIME).await;
        assert!(matches!(cut, Err(RecvError::Cut)), "{cut:?}");
    });
}

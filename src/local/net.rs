//! Connections that can be reset from inside a handler, and the server that accepts them.
//!
//! Every accepted socket carries a token; cancelling it makes the socket's next read or write fail and the close a TCP
//! reset, whatever HTTP/1 or HTTP/2 is doing at that time.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// All connections of a server.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections(Arc<Mutex<CancellationToken>>);

impl Connections {
    /// Resets every open connection; later ones are not affected.
    pub(super) fn reset(&self) {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *current).cancel();
    }

    fn child(&self) -> CancellationToken {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).child_token()
    }
}

/// The connection that a request came over.
#[derive(Clone, Debug)]
pub(super) struct Connection(CancellationToken);

impl Connection {
    /// Resets the connection, and with it whoever waits for this to return.
    pub(super) async fn reset<T>(&self) -> T {
        self.0.cancel();
        std::future::pending().await
    }
}

impl Connected<IncomingStream<'_, Acceptor>> for Connection {
    fn connect_info(stream: IncomingStream<'_, Acceptor>) -> Self {
        Self(stream.io().token.clone())
    }
}

/// Serves `router` until `stop`, then until the last connection has ended.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    connections: Connections,
    stop: CancellationToken,
) -> io::Result<()> {
    let service = router.into_make_service_with_connect_info::<Connection>();
    axum::serve(Acceptor { listener, connections }, service).with_graceful_shutdown(stop.cancelled_owned()).await
}

pub(super) struct Acceptor {
    listener: TcpListener,
    connections: Connections,
}

impl Listener for Acceptor {
    type Io = Socket;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Socket, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => return (Socket::new(stream, self.connections.child()), peer),
                // Out of file descriptors, or a peer that left already: neither gets better by trying at once.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

pub(super) struct Socket {
    stream: TcpStream,
    token: CancellationToken,
    reset: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Socket {
    fn new(stream: TcpStream, token: CancellationToken) -> Self {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "in-process service: no TCP_NODELAY");
        }
        let reset = Box::pin(token.clone().cancelled_owned());
        Self { stream, token, reset }
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.reset.as_mut().poll(context).is_pending() {
            return Ok(());
        }
        // The close becomes a reset instead of a clean end.
        self.stream.set_zero_linger()?;
        Err(io::ErrorKind::ConnectionReset.into())
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

//! Clients that can be built anew.
//!
//! None of Google's clients pings its connections. One that dies in silence, behind a firewall that forgot it, is used
//! until the system gives it up, a quarter of an hour later. So whoever sees calls run into their deadlines asks for
//! another client, which opens connections of its own.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::ConnectError;

/// A client younger than this is not replaced: many calls run into their deadlines at once.
const YOUNG: Duration = Duration::from_secs(5);

/// How long building a client may take.
const BUILD_DEADLINE: Duration = Duration::from_secs(10);

type Build<C> = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<C, ConnectError>> + Send>> + Send + Sync>;

/// A client that can be built anew. Clones share it.
pub struct Renewable<C>(Arc<Shared<C>>);

struct Shared<C> {
    current: Mutex<Current<C>>,
    build: Option<Build<C>>,
}

struct Current<C> {
    client: C,
    since: Instant,
}

impl<C: Clone> Renewable<C> {
    /// Builds the first client, and later ones in the same way.
    ///
    /// # Errors
    /// As `build` says.
    pub async fn new<Building>(build: impl Fn() -> Building + Send + Sync + 'static) -> Result<Self, ConnectError>
    where
        Building: Future<Output = Result<C, ConnectError>> + Send + 'static,
    {
        let current = Mutex::new(Current { client: build().await?, since: Instant::now() });
        let build: Build<C> = Box::new(move || Box::pin(build()));
        Ok(Self(Arc::new(Shared { current, build: Some(build) })))
    }

    /// The client now.
    pub fn get(&self) -> C {
        self.current().client.clone()
    }

    /// Builds another client, unless that was done a moment ago. Calls that run keep theirs.
    pub async fn renew(&self, why: &'static str) {
        let Some(build) = &self.0.build else { return };
        {
            let mut current = self.current();
            if current.since.elapsed() < YOUNG {
                return;
            }
            current.since = Instant::now();
        }
        tracing::debug!(why, "opening other connections, in case these are dead");
        match timeout(BUILD_DEADLINE, build()).await {
            Ok(Ok(client)) => self.current().client = client,
            Ok(Err(error)) => tracing::warn!(%error, "no other client"),
            Err(_) => tracing::warn!("no other client within {BUILD_DEADLINE:?}"),
        }
    }

    fn current(&self) -> MutexGuard<'_, Current<C>> {
        self.0.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> From<C> for Renewable<C> {
    /// One that stays as it is.
    fn from(client: C) -> Self {
        Self(Arc::new(Shared { current: Mutex::new(Current { client, since: Instant::now() }), build: None }))
    }
}

impl<C> Clone for Renewable<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C> fmt::Debug for Renewable<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewable").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test]
    async fn another_client_takes_over_but_not_at_once() {
        let built = Arc::new(AtomicU32::new(0));
        let counted = built.clone();
        let build = move || {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            async move { Ok(number) }
        };
        let client = Renewable::new(build).await.unwrap();
        client.renew("test").await;
        assert_eq!((client.get(), built.load(Ordering::SeqCst)), (0, 1), "it is young");
        client.current().since -= YOUNG;
        let clone = client.clone();
        tokio::join!(client.renew("test"), clone.renew("test"));
        assert_eq!((client.get(), clone.get(), built.load(Ordering::SeqCst)), (1, 1, 2), "once for all who ask");
        let fixed = Renewable::from(7);
        fixed.current().since -= YOUNG;
        fixed.renew("test").await;
        assert_eq!(fixed.get(), 7);
    }
}

//! Google's clients, built from the settings: Application Default Credentials checked before first use, emulators
//! reached without any.
//!
//! The clients build without credentials and then hang in their first call, so a token is asked for here, with a
//! deadline.

mod renewable;

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use backoff::{ExponentialBuilder, Retryable};
use google_cloud_auth::credentials::{self, Credentials, anonymous};
use google_cloud_gax::client_builder;
use google_cloud_gax::exponential_backoff::ExponentialBackoffBuilder;
use google_cloud_gax::retry_policy::RetryPolicyExt;
use google_cloud_pubsub::client::{Publisher, Subscriber};
use google_cloud_pubsub::retry_policy::RetryableErrors;
use google_cloud_storage::client::Storage;
use tokio::net::TcpStream;
use tokio::time::timeout;

pub use renewable::Renewable;

use crate::config::ServiceConfig;

/// How long the first token may take: the metadata server answers in milliseconds, a token exchange in a second or two.
const TOKEN_DEADLINE: Duration = Duration::from_secs(10);

/// How long one attempt to reach an emulator may take.
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);

/// How long the client gathers results into one call. Google's default is 10 ms; a result waits for it at every image.
const PUBLISH_DELAY: Duration = Duration::from_millis(5);

/// Why the clients could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// There are no usable credentials.
    #[error(
        "no usable Google credentials: {0}. On Google Cloud give the service a service account; elsewhere run \
         `gcloud auth application-default login` or set GOOGLE_APPLICATION_CREDENTIALS; for an emulator set \
         --pubsub-endpoint and --storage-endpoint to its http:// URL"
    )]
    Credentials(String),
    /// An emulator does not answer.
    #[error("nothing answers at {endpoint}: start the emulator there, or correct its endpoint setting")]
    Unreachable {
        /// Its URL.
        endpoint: String,
        /// What the last attempt to connect gave.
        source: std::io::Error,
    },
    /// A client refused its settings.
    #[error("cannot build the {0} client; check --pubsub-endpoint and --storage-endpoint")]
    Client(&'static str, #[source] client_builder::Error),
}

/// What a worker calls.
#[derive(Clone, Debug)]
pub struct WorkerClients {
    /// Pub/Sub, reading.
    pub subscriber: Renewable<Subscriber>,
    /// The results topic.
    pub publisher: Renewable<Publisher>,
    /// Cloud Storage.
    pub storage: Renewable<Storage>,
}

/// Builds clients for one set of services.
#[derive(Clone, Debug)]
pub struct Connector {
    services: ServiceConfig,
    credentials: Option<Credentials>,
}

impl Connector {
    /// Gets credentials where a service needs them, and proves that they give a token and that emulators answer.
    ///
    /// # Errors
    /// [`ConnectError::Credentials`] when there are none or they give no token in time, [`ConnectError::Unreachable`]
    /// for an emulator that does not answer within about ten seconds.
    pub async fn new(services: ServiceConfig) -> Result<Self, ConnectError> {
        let needed = !is_plain(&services.pubsub_endpoint) || !is_plain(&services.storage_endpoint);
        reach(&services.pubsub_endpoint).await?;
        reach(&services.storage_endpoint).await?;
        Self::with(services, needed).await
    }

    /// The same for Cloud Storage alone.
    ///
    /// # Errors
    /// As [`Connector::new`].
    pub async fn for_storage(services: ServiceConfig) -> Result<Self, ConnectError> {
        let needed = !is_plain(&services.storage_endpoint);
        reach(&services.storage_endpoint).await?;
        Self::with(services, needed).await
    }

    async fn with(services: ServiceConfig, needed: bool) -> Result<Self, ConnectError> {
        let credentials = if needed { Some(default_credentials().await?) } else { None };
        Ok(Self { services, credentials })
    }

    /// The client that pulls.
    ///
    /// # Errors
    /// The endpoint is unusable.
    pub async fn subscriber(&self) -> Result<Subscriber, ConnectError> {
        let mut builder = Subscriber::builder().with_credentials(self.credentials(&self.services.pubsub_endpoint));
        if let Some(endpoint) = &self.services.pubsub_endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        builder.build().await.map_err(|error| ConnectError::Client("Pub/Sub", error))
    }

    /// The client that publishes to `topic`, retrying for at most `deadline`.
    ///
    /// # Errors
    /// The endpoint is unusable.
    pub async fn publisher(&self, topic: &str, deadline: Duration) -> Result<Publisher, ConnectError> {
        let pauses = ExponentialBackoffBuilder::new()
            .with_initial_delay(Duration::from_millis(100))
            .with_maximum_delay(Duration::from_secs(5))
            .with_scaling(2.0)
            .clamp();
        let mut builder = Publisher::builder(topic)
            .with_credentials(self.credentials(&self.services.pubsub_endpoint))
            .with_retry_policy(RetryableErrors.with_time_limit(deadline))
            .with_backoff_policy(pauses)
            .set_delay_threshold(PUBLISH_DELAY);
        if let Some(endpoint) = &self.services.pubsub_endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        builder.build().await.map_err(|error| ConnectError::Client("Pub/Sub", error))
    }

    /// The client that reads and writes objects.
    ///
    /// # Errors
    /// The endpoint is unusable.
    pub async fn storage(&self) -> Result<Storage, ConnectError> {
        let mut builder = Storage::builder().with_credentials(self.credentials(&self.services.storage_endpoint));
        if let Some(endpoint) = &self.services.storage_endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        builder.build().await.map_err(|error| ConnectError::Client("Cloud Storage", error))
    }

    /// The three clients of a worker, each of which can be built anew.
    ///
    /// # Errors
    /// An endpoint is unusable.
    pub async fn worker(self, topic: &str, deadline: Duration) -> Result<WorkerClients, ConnectError> {
        let (it, topic): (Arc<Self>, Arc<str>) = (Arc::new(self), topic.into());
        let [pulls, publishes, reads] = [it.clone(), it.clone(), it];
        Ok(WorkerClients {
            subscriber: Renewable::new(move || {
                let it = pulls.clone();
                async move { it.subscriber().await }
            })
            .await?,
            publisher: Renewable::new(move || {
                let (it, topic) = (publishes.clone(), topic.clone());
                async move { it.publisher(&topic, deadline).await }
            })
            .await?,
            storage: Renewable::new(move || {
                let it = reads.clone();
                async move { it.storage().await }
            })
            .await?,
        })
    }

    fn credentials(&self, endpoint: &Option<String>) -> Credentials {
        match &self.credentials {
            Some(credentials) if !is_plain(endpoint) => credentials.clone(),
            _ => anonymous::Builder::new().build(),
        }
    }
}

/// Whether the endpoint is plain HTTP: an emulator, to which no token is ever sent.
fn is_plain(endpoint: &Option<String>) -> bool {
    endpoint.as_ref().is_some_and(|url| url.starts_with("http://"))
}

/// Waits until an emulator's port is open. Without this the client would retry for ever and say nothing.
async fn reach(endpoint: &Option<String>) -> Result<(), ConnectError> {
    let Some(endpoint) = endpoint.as_ref().filter(|_| is_plain(endpoint)) else { return Ok(()) };
    let authority = endpoint.trim_start_matches("http://").split('/').next().unwrap_or_default();
    let address = if authority.contains(':') { authority.to_owned() } else { format!("{authority}:80") };
    let connect = || async {
        let connected = timeout(CONNECT_DEADLINE, TcpStream::connect(&address)).await;
        connected.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())).map(drop)
    };
    let pauses = ExponentialBuilder::default().with_min_delay(Duration::from_millis(250)).with_max_times(5);
    let waiting = |error: &std::io::Error, pause| tracing::warn!(endpoint, %error, ?pause, "waiting for the emulator");
    let reached = connect.retry(pauses).notify(waiting).await;
    reached.map_err(|source| ConnectError::Unreachable { endpoint: endpoint.clone(), source })
}

async fn default_credentials() -> Result<Credentials, ConnectError> {
    let found = credentials::Builder::default()
        .with_scopes(["https://www.googleapis.com/auth/cloud-platform"])
        .build()
        .map_err(|error| ConnectError::Credentials(error.to_string()))?;
    match timeout(TOKEN_DEADLINE, found.headers(Default::default())).await {
        Ok(Ok(_)) => Ok(found),
        Ok(Err(error)) => Err(ConnectError::Credentials(error.to_string())),
        Err(_) => Err(ConnectError::Credentials(format!("no token within {TOKEN_DEADLINE:?}"))),
    }
}

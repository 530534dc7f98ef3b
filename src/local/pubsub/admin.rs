//! The REST calls of the admin clients: topics and subscriptions.

use axum::extract::{ConnectInfo, Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::wire::Wire;
use super::{Pubsub, status};
use crate::local::error::Error;
use crate::local::fault::Call;
use crate::local::net::Connection;

pub(super) fn router(pubsub: Pubsub) -> Router {
    Router::new()
        .route("/v1/projects/{project}/topics", get(list_topics))
        .route("/v1/projects/{project}/topics/{id}", put(create_topic).get(get_topic).delete(delete_topic))
        .route("/v1/projects/{project}/subscriptions", get(list_subscriptions))
        .route(
            "/v1/projects/{project}/subscriptions/{id}",
            put(create_subscription).get(get_subscription).delete(delete_subscription),
        )
        .with_state(pubsub)
}

type Names = Path<(String, String)>;
type Answer = Result<Json<Value>, Failure>;

/// An error as Google's REST front end writes it.
struct Failure(Error);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let http = self.0.http_status();
        let status = match &self.0 {
            Error::AlreadyExists(_) => "ALREADY_EXISTS".to_owned(),
            _ => screaming(&format!("{:?}", status::code(http))),
        };
        let body = json!({"error": {"code": http, "message": self.0.to_string(), "status": status}});
        let http = axum::http::StatusCode::from_u16(http).unwrap_or(axum::http::StatusCode::INTERNAL_SERVER_ERROR);
        (http, Json(body)).into_response()
    }
}

/// `NotFound` as `NOT_FOUND`.
fn screaming(name: &str) -> String {
    let mut screaming = String::new();
    for (at, letter) in name.char_indices() {
        if at > 0 && letter.is_ascii_uppercase() {
            screaming.push('_');
        }
        screaming.push(letter.to_ascii_uppercase());
    }
    screaming
}

impl Pubsub {
    async fn admin(&self, peer: &Connection, name: &str) -> Result<(), Error> {
        self.faults.enter(Call::Admin, name, peer).await.map(drop)
    }
}

async fn create_topic(State(pubsub): State<Pubsub>, peer: ConnectInfo<Connection>, names: Names) -> Answer {
    let name = topic_name(&names);
    pubsub.admin(&peer, &name).await?;
    pubsub.broker.create_topic(&name)?;
    Ok(Json(json!({"name": name})))
}

async fn get_topic(State(pubsub): State<Pubsub>, peer: ConnectInfo<Connection>, names: Names) -> Answer {
    let name = topic_name(&names);
    pubsub.admin(&peer, &name).await?;
    pubsub.broker.topic_exists(&name)?;
    Ok(Json(json!({"name": name})))
}

async fn delete_topic(State(pubsub): State<Pubsub>, peer: ConnectInfo<Connection>, names: Names) -> Answer {
    let name = topic_name(&names);
    pubsub.admin(&peer, &name).await?;
    pubsub.broker.delete_topic(&name)?;
    Ok(Json(json!({})))
}

/// All on one page.
async fn list_topics(
    State(pubsub): State<Pubsub>,
    peer: ConnectInfo<Connection>,
    Path(project): Path<String>,
) -> Answer {
    let project = format!("projects/{project}/topics");
    pubsub.admin(&peer, &project).await?;
    let topics: Vec<Value> = pubsub.broker.topics(&project).iter().map(|name| json!({"name": name})).collect();
    Ok(Json(json!({"topics": topics})))
}

async fn create_subscription(
    State(pubsub): State<Pubsub>,
    peer: ConnectInfo<Connection>,
    names: Names,
    Json(wanted): Json<Wire>,
) -> Answer {
    let name = subscription_name(&names);
    pubsub.admin(&peer, &name).await?;
    pubsub.broker.create_subscription(wanted.settings(&name)?)?;
    Ok(Json(json!(Wire::of(&pubsub.broker.subscription(&name)?))))
}

async fn get_subscription(State(pubsub): State<Pubsub>, peer: ConnectInfo<Connection>, names: Names) -> Answer {
    let name = subscription_name(&names);
    pubsub.admin(&peer, &name).await?;
    Ok(Json(json!(Wire::of(&pubsub.broker.subscription(&name)?))))
}

async fn delete_subscription(State(pubsub): State<Pubsub>, peer: ConnectInfo<Connection>, names: Names) -> Answer {
    let name = subscription_name(&names);
    pubsub.admin(&peer, &name).await?;
    pubsub.broker.delete_subscription(&name)?;
    Ok(Json(json!({})))
}

/// All on one page.
async fn list_subscriptions(
    State(pubsub): State<Pubsub>,
    peer: ConnectInfo<Connection>,
    Path(project): Path<String>,
) -> Answer {
    let project = format!("projects/{project}/subscriptions");
    pubsub.admin(&peer, &project).await?;
    let subscriptions: Vec<Wire> = pubsub.broker.subscriptions(&project).iter().map(Wire::of).collect();
    Ok(Json(json!({"subscriptions": subscriptions})))
}

fn topic_name(Path((project, id)): &Names) -> String {
    format!("projects/{project}/topics/{id}")
}

fn subscription_name(Path((project, id)): &Names) -> String {
    format!("projects/{project}/subscriptions/{id}")
}

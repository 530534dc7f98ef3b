//! Generates the gRPC service glue of the in-process Pub/Sub (feature `local`); message types come from a crate, so
//! that no protobuf compiler is needed.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "local")]
    pubsub::generate();
}

#[cfg(feature = "local")]
mod pubsub {
    use tonic_build::manual::{Builder, Method, Service};

    /// Where the generated code finds its message types.
    const TYPES: &str = "crate::local::pubsub::glue";

    /// Writes the server traits of the calls that Google's clients make into `OUT_DIR`.
    pub(super) fn generate() {
        let publisher = service("Publisher").method(unary("publish", "Publish", "PublishResponse")).build();
        let subscriber = service("Subscriber")
            .method(unary("acknowledge", "Acknowledge", "Empty"))
            .method(unary("modify_ack_deadline", "ModifyAckDeadline", "Empty"))
            .method(streaming_pull())
            .build();
        Builder::new().build_client(false).build_server(true).compile(&[publisher, subscriber]);
    }

    fn service(name: &str) -> tonic_build::manual::ServiceBuilder {
        Service::builder().name(name).package("google.pubsub.v1")
    }

    fn unary(name: &str, route: &str, output: &str) -> Method {
        method(name, route, &format!("{route}Request"), output).build()
    }

    fn streaming_pull() -> Method {
        method("streaming_pull", "StreamingPull", "StreamingPullRequest", "StreamingPullResponse")
            .client_streaming()
            .server_streaming()
            .build()
    }

    fn method(name: &str, route: &str, input: &str, output: &str) -> tonic_build::manual::MethodBuilder {
        Method::builder()
            .name(name)
            .route_name(route)
            .input_type(format!("{TYPES}::{input}"))
            .output_type(format!("{TYPES}::{output}"))
            .codec_path("tonic_prost::ProstCodec")
    }
}

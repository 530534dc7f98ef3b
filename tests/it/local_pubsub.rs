//! The in-process Pub/Sub, through Google's own clients over loopback.

use std::time::{Duration, Instant};

use google_cloud_auth::credentials::{Credentials, anonymous};
use google_cloud_gax::error::rpc::Code;
use google_cloud_gax::retry_policy::NeverRetry;
use google_cloud_pubsub::client::{Publisher, Subscriber, SubscriptionAdmin, TopicAdmin};
use google_cloud_pubsub::error::{AckError, PublishError};
use google_cloud_pubsub::model::{DeadLetterPolicy, Message, RetryPolicy, Subscription};
use google_cloud_pubsub::subscriber::MessageStream;
use google_cloud_pubsub::subscriber::handler::Handler;
use stoker::local::{Backoff, Call, Counts, DeadLetter, Error, Fault, Rule, Services, Settings, SubscriptionSettings};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

const TOPIC: &str = "projects/p/topics/uploads";
const SUBSCRIPTION: &str = "projects/p/subscriptions/worker";
const DEAD_TOPIC: &str = "projects/p/topics/dead";
const DEAD_SUBSCRIPTION: &str = "projects/p/subscriptions/dead";

fn anyone() -> Credentials {
    anonymous::Builder::new().build()
}

/// Services with one topic, and one subscription that `change` may alter.
async fn services(change: impl FnOnce(SubscriptionSettings) -> SubscriptionSettings) -> Services {
    let services = Services::start(Settings::default()).await.unwrap();
    services.create_topic(TOPIC).unwrap();
    services.create_subscription(change(SubscriptionSettings::new(SUBSCRIPTION, TOPIC))).unwrap();
    services
}

async fn plain() -> Services {
    services(|settings| settings).await
}

async fn publisher(services: &Services) -> Publisher {
    Publisher::builder(TOPIC)
        .with_endpoint(services.pubsub_endpoint())
        .with_credentials(anyone())
        .set_delay_threshold(Duration::from_millis(1))
        .build()
        .await
        .unwrap()
}

async fn impatient_publisher(services: &Services) -> Publisher {
    let builder = Publisher::builder(TOPIC).with_endpoint(services.pubsub_endpoint()).with_credentials(anyone());
    builder.with_retry_policy(NeverRetry).build().await.unwrap()
}

/// A stream that only a task of its own waits for: a cancelled `next()` would open a second one.
struct Reader {
    messages: mpsc::Receiver<google_cloud_pubsub::Result<(Message, Handler)>>,
    _tasks: JoinSet<()>,
}

impl Reader {
    async fn open(services: &Services) -> Self {
        Self::limited(services, 1000, 100 << 20).await
    }

    async fn limited(services: &Services, messages: i64, bytes: i64) -> Self {
        let subscriber = subscriber(services).await;
        let builder = subscriber.subscribe(SUBSCRIPTION).set_max_lease_extension(Duration::from_secs(10));
        Self::run(builder.set_max_outstanding_messages(messages).set_max_outstanding_bytes(bytes).build())
    }

    fn run(mut stream: MessageStream) -> Self {
        let (sender, messages) = mpsc::channel(1000);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            while let Some(next) = stream.next().await {
                if sender.send(next).await.is_err() {
                    return;
                }
            }
        });
        Self { messages, _tasks: tasks }
    }

    async fn next(&mut self) -> (Message, Handler) {
        self.messages.recv().await.expect("the stream goes on").unwrap()
    }

    async fn error(&mut self) -> google_cloud_pubsub::Error {
        self.messages.recv().await.expect("an error before the end").unwrap_err()
    }
}

async fn subscriber(services: &Services) -> Subscriber {
    let builder = Subscriber::builder().with_endpoint(services.pubsub_endpoint());
    builder.with_credentials(anyone()).build().await.unwrap()
}

/// Every wait for an event is under this one.
async fn within<T>(test: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), test).await.expect("the event comes in time")
}

#[tokio::test]
async fn a_published_message_is_delivered_and_acknowledged() {
    within(async {
        let services = plain().await;
        let message = Message::new().set_data("hello").set_attributes([("kind", "test"), ("empty", "")]);
        let id = publisher(&services).await.publish(message).await.unwrap();
        let mut reader = Reader::open(&services).await;
        let (message, handler) = reader.next().await;
        assert_eq!(message.message_id, id);
        assert_eq!(&message.data[..], b"hello");
        assert_eq!(message.attributes["kind"], "test");
        assert_eq!(message.attributes.len(), 2);
        assert!(message.publish_time.is_some_and(|time| time.seconds() > 1_700_000_000));
        assert_eq!(handler.delivery_attempt(), None, "only a dead-letter policy counts attempts");
        assert_eq!(services.counts(SUBSCRIPTION).unwrap().outstanding, 1);
        handler.ack();
        let counts = services.wait_idle(SUBSCRIPTION).await.unwrap();
        assert_eq!(counts, Counts { acked: 1, ..Counts::default() });
    })
    .await;
}

#[tokio::test]
async fn the_admin_clients_create_read_and_delete() {
    within(async {
        let services = Services::start(Settings::default()).await.unwrap();
        let topics = TopicAdmin::builder().with_endpoint(services.pubsub_endpoint()).with_credentials(anyone());
        let topics = topics.build().await.unwrap();
        topics.create_topic().set_name(TOPIC).send().await.unwrap();
        let again = topics.create_topic().set_name(TOPIC).send().await.unwrap_err();
        assert_eq!(again.status().unwrap().code, Code::AlreadyExists);
        assert_eq!(topics.get_topic().set_topic(TOPIC).send().await.unwrap().name, TOPIC);

        let admin = SubscriptionAdmin::builder().with_endpoint(services.pubsub_endpoint()).with_credentials(anyone());
        let admin = admin.build().await.unwrap();
        let wanted = Subscription::new()
            .set_name(SUBSCRIPTION)
            .set_topic(TOPIC)
            .set_ack_deadline_seconds(30)
            .set_enable_exactly_once_delivery(true)
            .set_dead_letter_policy(
                DeadLetterPolicy::new().set_dead_letter_topic(DEAD_TOPIC).set_max_delivery_attempts(7),
            )
            .set_retry_policy(
                RetryPolicy::new().set_minimum_backoff(google_cloud_wkt::Duration::clamp(1, 500_000_000)),
            );
        let created = admin.create_subscription().with_request(wanted.clone()).send().await.unwrap();
        let found = admin.get_subscription().set_subscription(SUBSCRIPTION).send().await.unwrap();
        assert_eq!(created, found);
        assert_eq!((found.topic, found.ack_deadline_seconds), (TOPIC.to_owned(), 30));
        assert!(found.enable_exactly_once_delivery);
        assert_eq!(found.dead_letter_policy, wanted.dead_letter_policy);
        let retry = found.retry_policy.unwrap();
        assert_eq!(retry.minimum_backoff, Some(google_cloud_wkt::Duration::clamp(1, 500_000_000)));
        assert_eq!(retry.maximum_backoff, Some(google_cloud_wkt::Duration::clamp(600, 0)), "the service's default");

        let ordered = wanted.set_name("projects/p/subscriptions/ordered").set_enable_message_ordering(true);
        let refused = admin.create_subscription().with_request(ordered).send().await.unwrap_err();
        assert_eq!(refused.status().unwrap().code, Code::InvalidArgument, "not offered, so not accepted silently");
        let listed = admin.list_subscriptions().set_project("projects/p").send().await.unwrap();
        assert_eq!(listed.subscriptions.len(), 1);

        admin.delete_subscription().set_subscription(SUBSCRIPTION).send().await.unwrap();
        let gone = admin.get_subscription().set_subscription(SUBSCRIPTION).send().await.unwrap_err();
        assert_eq!(gone.status().unwrap().code, Code::NotFound);
        topics.delete_topic().set_topic(TOPIC).send().await.unwrap();
        let gone = topics.get_topic().set_topic(TOPIC).send().await.unwrap_err();
        assert_eq!(gone.status().unwrap().code, Code::NotFound);
    })
    .await;
}

#[tokio::test]
async fn a_nack_is_redelivered_after_the_back_off_and_not_before() {
    within(async {
        let pause = Duration::from_millis(400);
        let backoff = Backoff { min: pause, max: pause * 2 };
        let services = services(|settings| SubscriptionSettings { retry: Some(backoff), ..settings }).await;
        services.publish(TOPIC, &[], "a").unwrap();
        let mut reader = Reader::open(&services).await;
        let (_, first) = reader.next().await;
        let nacked = Instant::now();
        first.nack();
        services.wait_until(SUBSCRIPTION, |counts| counts.delayed == 1).await.unwrap();
        let (_, second) = reader.next().await;
        assert!(nacked.elapsed() >= pause, "{:?}", nacked.elapsed());
        second.nack();
        services.wait_until(SUBSCRIPTION, |counts| counts.delayed == 1).await.unwrap();
        let delayed = Instant::now();
        let (_, third) = reader.next().await;
        assert!(delayed.elapsed() >= pause + pause / 2, "the second pause is longer: {:?}", delayed.elapsed());
        third.ack();
        services.wait_idle(SUBSCRIPTION).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn without_a_retry_policy_a_nack_is_redelivered_at_once() {
    within(async {
        let services = plain().await;
        services.publish(TOPIC, &[], "a").unwrap();
        let mut reader = Reader::open(&services).await;
        for _ in 0..3 {
            reader.next().await.1.nack();
        }
        drop(reader.next().await.1);
        reader.next().await.1.ack();
        services.wait_idle(SUBSCRIPTION).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_lease_that_ends_is_redelivered() {
    within(async {
        let lease = Duration::from_millis(100);
        let services = services(|settings| SubscriptionSettings { ack_deadline: lease, ..settings }).await;
        services.publish(TOPIC, &[], "a").unwrap();
        let started = Instant::now();
        let held = services.pull(SUBSCRIPTION, 1).unwrap().remove(0);
        let mut reader = Reader::open(&services).await;
        let (_, handler) = reader.next().await;
        assert!(started.elapsed() >= lease);
        assert!(!services.acknowledge(SUBSCRIPTION, &held.ack_id).unwrap(), "the old lease is over");
        services.expire_leases(SUBSCRIPTION).unwrap();
        let (_, again) = reader.next().await;
        handler.ack();
        again.ack();
        services.wait_idle(SUBSCRIPTION).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_client_never_has_more_messages_than_it_asked_for() {
    within(async {
        let services = plain().await;
        for _ in 0..20 {
            services.publish(TOPIC, &[], "a").unwrap();
        }
        let mut reader = Reader::limited(&services, 3, 0).await;
        let mut held = std::collections::VecDeque::new();
        for received in 1..=20_u64 {
            held.push_back(reader.next().await.1);
            if held.len() == 3 {
                let counts = services.counts(SUBSCRIPTION).unwrap();
                assert_eq!((counts.outstanding, counts.acked), (3, received - 3), "exactly as many as it may hold");
                assert!(reader.messages.try_recv().is_err());
                held.pop_front().unwrap().ack();
                services.wait_until(SUBSCRIPTION, |counts| counts.acked == received - 2).await.unwrap();
                assert!(services.counts(SUBSCRIPTION).unwrap().outstanding <= 3);
            }
        }
        held.into_iter().for_each(Handler::ack);
        services.wait_idle(SUBSCRIPTION).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_client_gets_no_message_while_its_bytes_are_reached() {
    within(async {
        let services = plain().await;
        for _ in 0..10 {
            services.publish(TOPIC, &[], vec![0; 400]).unwrap();
        }
        let mut reader = Reader::limited(&services, 0, 1000).await;
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(reader.next().await.1);
        }
        let counts = services.counts(SUBSCRIPTION).unwrap();
        assert_eq!((counts.ready, counts.outstanding), (7, 3), "1200 of 1000 bytes: the last one may exceed");
        held.into_iter().for_each(Handler::ack);
        for _ in 0..7 {
            reader.next().await.1.ack();
        }
        services.wait_idle(SUBSCRIPTION).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_message_goes_to_the_dead_letter_topic_after_its_attempts() {
    within(async {
        let policy = DeadLetter { topic: DEAD_TOPIC.to_owned(), max_attempts: 3 };
        let services = services(|settings| SubscriptionSettings { dead_letter: Some(policy), ..settings }).await;
        services.create_topic(DEAD_TOPIC).unwrap();
        services.create_subscription(SubscriptionSettings::new(DEAD_SUBSCRIPTION, DEAD_TOPIC)).unwrap();
        services.publish(TOPIC, &[("kind", "poison")], "a").unwrap();
        let mut reader = Reader::open(&services).await;
        for attempt in 1..=3 {
            let (_, handler) = reader.next().await;
            assert_eq!(handler.delivery_attempt(), Some(attempt));
            handler.nack();
        }
        let letter = services.receive(DEAD_SUBSCRIPTION, 1).await.unwrap().remove(0);
        assert_eq!(&letter.data[..], b"a");
        assert_eq!(letter.attributes["kind"], "poison");
        assert_eq!(letter.attributes["CloudPubSubDeadLetterSourceDeliveryCount"], "3");
        assert_eq!(letter.attributes["CloudPubSubDeadLetterSourceSubscription"], "worker");
        assert_eq!(letter.attributes["CloudPubSubDeadLetterSourceSubscriptionProject"], "p");
        assert!(letter.attributes["CloudPubSubDeadLetterSourceTopicPublishTime"].ends_with('Z'));
        let counts = services.counts(SUBSCRIPTION).unwrap();
        assert_eq!(counts, Counts { dead_lettered: 1, ..Counts::default() });
    })
    .await;
}

#[tokio::test]
async fn a_dead_letter_stays_while_its_topic_does_not_exist() {
    within(async {
        let policy = DeadLetter { topic: DEAD_TOPIC.to_owned(), max_attempts: 1 };
        let services = services(|settings| SubscriptionSettings { dead_letter: Some(policy), ..settings }).await;
        services.publish(TOPIC, &[], "a").unwrap();
        let mut reader = Reader::open(&services).await;
        reader.next().await.1.nack();
        let (_, second) = reader.next().await;
        assert_eq!(second.delivery_attempt(), Some(2));
        services.create_topic(DEAD_TOPIC).unwrap();
        services.create_subscription(SubscriptionSettings::new(DEAD_SUBSCRIPTION, DEAD_TOPIC)).unwrap();
        second.nack();
        services.receive(DEAD_SUBSCRIPTION, 1).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn exactly_once_confirms_an_acknowledgement_and_refuses_one_that_is_too_late() {
    within(async {
        let services = services(|settings| SubscriptionSettings { exactly_once: true, ..settings }).await;
        for _ in 0..2 {
            services.publish(TOPIC, &[], "a").unwrap();
        }
        let mut reader = Reader::open(&services).await;
        let mut next = async || match reader.next().await.1 {
            Handler::ExactlyOnce(handler) => handler,
            other => panic!("not an exactly-once subscription: {other:?}"),
        };
        next().await.confirmed_ack().await.unwrap();
        assert_eq!(services.counts(SUBSCRIPTION).unwrap().acked, 1, "confirmed means done");
        let late = next().await;
        services.expire_leases(SUBSCRIPTION).unwrap();
        let again = next().await;
        let Err(AckError::Rpc { source, .. }) = late.confirmed_ack().await else { panic!("a late ack must fail") };
        assert_eq!(source.status().unwrap().code, Code::InvalidArgument);
        again.confirmed_ack().await.unwrap();
        let counts = services.wait_idle(SUBSCRIPTION).await.unwrap();
        assert_eq!(counts.acked, 2);
    })
    .await;
}

#[tokio::test]
async fn a_stream_of_a_subscription_that_is_gone_ends_with_not_found() {
    within(async {
        let services = plain().await;
        services.publish(TOPIC, &[], "a").unwrap();
        let mut open = Reader::open(&services).await;
        let (_, held) = open.next().await;
        services.delete_subscription(SUBSCRIPTION).unwrap();
        // Another one of the same name is not the one that the stream belongs to.
        services.create_subscription(SubscriptionSettings::new(SUBSCRIPTION, TOPIC)).unwrap();
        assert_eq!(open.error().await.status().unwrap().code, Code::NotFound);
        drop(held);
        services.delete_subscription(SUBSCRIPTION).unwrap();
        let mut late = Reader::open(&services).await;
        assert_eq!(late.error().await.status().unwrap().code, Code::NotFound);
    })
    .await;
}

/// As the real service does; this is what makes a cancelled `next()` open a second stream.
#[tokio::test]
async fn response_headers_come_with_the_first_message() {
    within(async {
        let services = plain().await;
        services.create_topic(DEAD_TOPIC).unwrap();
        let elsewhere = Publisher::builder(DEAD_TOPIC).with_endpoint(services.pubsub_endpoint());
        let elsewhere = elsewhere.with_credentials(anyone()).build().await.unwrap();
        let mut stream = subscriber(&services).await.subscribe(SUBSCRIPTION).build();
        for opened in 1..=2 {
            let opening = async {
                services.faults().wait_for(Call::StreamingPull, opened).await;
                // Headers that were sent by now arrive during these calls, and a stream with headers is kept.
                for _ in 0..5 {
                    elsewhere.publish(Message::new().set_data("a")).await.unwrap();
                }
            };
            tokio::select! {
                next = stream.next() => panic!("nothing was published, yet: {next:?}"),
                () = opening => {}
            }
        }
    })
    .await;
}

#[tokio::test]
async fn two_streams_share_a_backlog() {
    within(async {
        let services = plain().await;
        let mut one = Reader::limited(&services, 1, 0).await;
        let mut two = Reader::limited(&services, 1, 0).await;
        for _ in 0..2 {
            services.publish(TOPIC, &[], "a").unwrap();
        }
        let (_held_by_one, _held_by_two) = (one.next().await, two.next().await);
        assert_eq!(services.counts(SUBSCRIPTION).unwrap().outstanding, 2);
    })
    .await;
}

#[tokio::test]
async fn a_failing_publish_is_retried_or_reported_as_its_status_says() {
    within(async {
        let services = plain().await;
        let faults = services.faults();
        faults.add(Rule::new(Call::Publish, Fault::Error(503)).times(2)).unwrap();
        publisher(&services).await.publish(Message::new().set_data("a")).await.unwrap();
        assert_eq!(faults.count(Call::Publish), 3);
        assert_eq!(services.counts(SUBSCRIPTION).unwrap().ready, 1);

        faults.add(Rule::new(Call::Publish, Fault::Error(403)).matching("uploads")).unwrap();
        let refused = publisher(&services).await.publish(Message::new().set_data("b")).await.unwrap_err();
        assert_eq!(code(&refused), Code::PermissionDenied);
    })
    .await;
}

#[tokio::test]
async fn a_publish_without_an_answer_is_stored_all_the_same() {
    within(async {
        let services = plain().await;
        services.faults().add(Rule::new(Call::Publish, Fault::LoseReply)).unwrap();
        impatient_publisher(&services).await.publish(Message::new().set_data("a")).await.unwrap_err();
        assert_eq!(services.counts(SUBSCRIPTION).unwrap().ready, 1);
        services.faults().add(Rule::new(Call::Publish, Fault::Reset)).unwrap();
        impatient_publisher(&services).await.publish(Message::new().set_data("b")).await.unwrap_err();
        assert_eq!(services.counts(SUBSCRIPTION).unwrap().ready, 1, "a reset takes no effect");
        services.faults().add(Rule::new(Call::Publish, Fault::Duplicate)).unwrap();
        publisher(&services).await.publish(Message::new().set_data("c")).await.unwrap();
        let received = services.receive(SUBSCRIPTION, 3).await.unwrap();
        assert_eq!(received[1].data, received[2].data);
        assert_ne!(received[1].id, received[2].id, "two messages to every subscriber");
    })
    .await;
}

#[tokio::test]
async fn a_delayed_publish_arrives_late() {
    within(async {
        let services = plain().await;
        let delay = Duration::from_millis(300);
        services.faults().add(Rule::new(Call::Publish, Fault::Delay(delay))).unwrap();
        let started = Instant::now();
        publisher(&services).await.publish(Message::new().set_data("a")).await.unwrap();
        assert!(started.elapsed() >= delay);
    })
    .await;
}

#[tokio::test]
async fn a_lost_acknowledgement_means_a_redelivery() {
    within(async {
        let services = plain().await;
        services.publish(TOPIC, &[], "a").unwrap();
        services.faults().add(Rule::new(Call::Acknowledge, Fault::Error(503))).unwrap();
        let mut reader = Reader::open(&services).await;
        reader.next().await.1.ack();
        services.faults().wait_for(Call::Acknowledge, 1).await;
        assert_eq!(services.counts(SUBSCRIPTION).unwrap().acked, 0);
        services.expire_leases(SUBSCRIPTION).unwrap();
        reader.next().await.1.ack();
        services.wait_idle(SUBSCRIPTION).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_is_refused_or_broken_is_opened_again() {
    within(async {
        let services = plain().await;
        let faults = services.faults();
        faults.add(Rule::new(Call::StreamingPull, Fault::Error(503))).unwrap();
        services.publish(TOPIC, &[], "a").unwrap();
        let mut reader = Reader::open(&services).await;
        reader.next().await.1.ack();
        assert_eq!(faults.count(Call::StreamingPull), 2);
        services.wait_idle(SUBSCRIPTION).await.unwrap();

        faults.add(Rule::new(Call::Deliver, Fault::Error(503))).unwrap();
        services.publish(TOPIC, &[], "b").unwrap();
        reader.next().await.1.ack();
        services.wait_idle(SUBSCRIPTION).await.unwrap();

        faults.add(Rule::new(Call::Deliver, Fault::Reset)).unwrap();
        services.publish(TOPIC, &[], "c").unwrap();
        reader.next().await.1.ack();
        services.wait_idle(SUBSCRIPTION).await.unwrap();

        let opened = faults.count(Call::StreamingPull);
        services.reset_connections();
        faults.wait_for(Call::StreamingPull, opened + 1).await;
        services.publish(TOPIC, &[], "d").unwrap();
        reader.next().await.1.ack();
        services.wait_idle(SUBSCRIPTION).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_stalled_stream_is_silent_while_another_one_is_served() {
    within(async {
        let services = plain().await;
        services.faults().add(Rule::new(Call::Deliver, Fault::Stall)).unwrap();
        services.publish(TOPIC, &[], "a").unwrap();
        let mut silent = Reader::open(&services).await;
        services.faults().wait_for(Call::Deliver, 1).await;
        let mut served = Reader::open(&services).await;
        served.next().await.1.ack();
        services.wait_idle(SUBSCRIPTION).await.unwrap();
        assert!(silent.messages.try_recv().is_err());
        assert_eq!(services.faults().count(Call::StreamingPull), 2, "the silent stream is still open");
    })
    .await;
}

#[tokio::test]
async fn a_duplicate_delivery_has_the_same_message_under_another_lease() {
    within(async {
        let services = plain().await;
        services.faults().add(Rule::new(Call::Deliver, Fault::Duplicate)).unwrap();
        services.publish(TOPIC, &[], "a").unwrap();
        let mut reader = Reader::open(&services).await;
        let (first, one) = reader.next().await;
        let (second, two) = reader.next().await;
        assert_eq!(first.message_id, second.message_id);
        one.ack();
        two.ack();
        assert_eq!(services.wait_idle(SUBSCRIPTION).await.unwrap().acked, 2);
    })
    .await;
}

#[tokio::test]
async fn the_backlog_is_bounded() {
    let settings = Settings { max_messages: 2, max_message_bytes: 100, ..Settings::default() };
    let services = Services::start(settings).await.unwrap();
    services.create_topic(TOPIC).unwrap();
    services.publish(TOPIC, &[], vec![0; 1000]).expect("nobody subscribes, so nothing is kept");
    services.create_subscription(SubscriptionSettings::new(SUBSCRIPTION, TOPIC)).unwrap();
    assert!(matches!(services.publish(TOPIC, &[], vec![0; 101]), Err(Error::Full(_))));
    services.publish(TOPIC, &[], "a").unwrap();
    services.publish(TOPIC, &[], "b").unwrap();
    assert!(matches!(services.publish(TOPIC, &[], "c"), Err(Error::Full(_))));
    let held = services.pull(SUBSCRIPTION, 1).unwrap().remove(0);
    services.acknowledge(SUBSCRIPTION, &held.ack_id).unwrap();
    services.publish(TOPIC, &[], "c").expect("an acknowledgement makes room");
}

#[tokio::test]
async fn a_message_of_ten_megabytes_goes_through() {
    within(async {
        let services = plain().await;
        let data = vec![7; 10_000_000];
        publisher(&services).await.publish(Message::new().set_data(data.clone())).await.unwrap();
        let (message, handler) = Reader::open(&services).await.next().await;
        assert_eq!(message.data, data);
        handler.ack();
    })
    .await;
}

#[tokio::test]
async fn services_stop_with_a_stream_open_and_a_call_stalled() {
    within(async {
        let services = plain().await;
        services.faults().add(Rule::new(Call::Publish, Fault::Stall)).unwrap();
        let _reader = Reader::open(&services).await;
        let publisher = impatient_publisher(&services).await;
        let stalled = publisher.publish(Message::new().set_data("a"));
        services.faults().wait_for(Call::Publish, 1).await;
        services.faults().wait_for(Call::StreamingPull, 1).await;
        services.shutdown().await;
        stalled.await.unwrap_err();
    })
    .await;
}

fn code(error: &PublishError) -> Code {
    match error {
        PublishError::Rpc(source) => source.status().unwrap().code,
        other => panic!("{other}"),
    }
}

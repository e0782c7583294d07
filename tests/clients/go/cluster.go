package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// waitMax only ends a hang; nothing is measured with it.
const waitMax = 90 * time.Second

var instances atomic.Int64

func instance() string { return fmt.Sprintf("go-%d", instances.Add(1)) }

func reached(condition func() bool) bool {
	for end := time.Now().Add(waitMax); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

func await(what string, condition func() bool) error {
	if !reached(condition) {
		return fmt.Errorf("still waiting after %v for: %s", waitMax, what)
	}
	return nil
}

func (o options) resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{o.namesrv})
}

// createTopic makes the topic and gives its queues as soon as the name server routes them.
func (o options) createTopic(topic string, queueCount int) ([]*primitive.MessageQueue, error) {
	client, err := admin.NewAdmin(admin.WithResolver(o.resolver()))
	if err != nil {
		return nil, err
	}
	err = client.CreateTopic(context.Background(), admin.WithTopicCreate(topic), admin.WithBrokerAddrCreate(o.broker),
		admin.WithReadQueueNums(queueCount), admin.WithWriteQueueNums(queueCount))
	if err != nil {
		return nil, err
	}
	var queues []*primitive.MessageQueue
	return queues, await("a route for "+topic, func() bool {
		queues, err = client.FetchPublishMessageQueues(context.Background(), topic)
		return err == nil && len(queues) == queueCount
	})
}

func (o options) producer(group string, more ...producer.Option) (rocketmq.Producer, error) {
	p, err := rocketmq.NewProducer(append([]producer.Option{
		producer.WithNsResolver(o.resolver()),
		producer.WithGroupName(group),
		producer.WithInstanceName(instance()),
		// A slow machine must not turn into a second send of the same message.
		producer.WithSendMsgTimeout(60 * time.Second),
	}, more...)...)
	if err != nil {
		return nil, err
	}
	return p, p.Start()
}

func (o options) consumer(group, topic, tags string, on func(*primitive.MessageExt)) (rocketmq.PushConsumer, error) {
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(o.resolver()),
		consumer.WithGroupName(group),
		consumer.WithInstance(instance()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return nil, err
	}
	selector := consumer.MessageSelector{}
	if tags != "*" {
		selector = consumer.MessageSelector{Type: consumer.TAG, Expression: tags}
	}
	err = c.Subscribe(topic, selector, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			on(message)
		}
		return consumer.ConsumeSuccess, nil
	})
	if err != nil {
		return nil, err
	}
	return c, c.Start()
}

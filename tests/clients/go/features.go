package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// features is one short use of each part of the client that an application meets.
func features(o options) (*result, error) {
	r := newResult()
	for _, feature := range []struct {
		name  string
		check func(options) error
	}{
		{"send", featureSend},
		{"batch", featureBatch},
		{"tags", featureTags},
		{"auto_topic", featureAutoTopic},
		{"pull", featurePull},
		{"poll", featurePoll},
		{"resume", featureResume},
	} {
		started := time.Now()
		if err := feature.check(o); err != nil {
			r.put(feature.name, "failed")
			r.fail(feature.name + ": " + err.Error())
		} else {
			r.put(feature.name, "ok")
		}
		fmt.Fprintf(os.Stderr, "%s took %v\n", feature.name, time.Since(started).Round(time.Millisecond))
	}
	return r, nil
}

// seen collects keys from many goroutines and counts deliveries.
type seen struct {
	lock       sync.Mutex
	keys       map[string]bool
	deliveries int
}

func newSeen() *seen { return &seen{keys: map[string]bool{}} }

func (s *seen) add(key string) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.keys[key] = true
	s.deliveries++
}

func (s *seen) counts() (distinct, deliveries int) {
	s.lock.Lock()
	defer s.lock.Unlock()
	return len(s.keys), s.deliveries
}

func (s *seen) has(keys map[string]bool) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	for key := range keys {
		if !s.keys[key] {
			return false
		}
	}
	return true
}

func textMessage(topic, key string) *primitive.Message {
	return primitive.NewMessage(topic, []byte(key)).WithKeys([]string{key})
}

// featureSend: synchronous, asynchronous and one-way sends all arrive, each once.
func featureSend(o options) error {
	topic := o.topic + "-send"
	if _, err := o.createTopic(topic, 8); err != nil {
		return err
	}
	got := newSeen()
	c, err := o.consumer(topic+"-group", topic, "*", func(m *primitive.MessageExt) { got.add(m.GetKeys()) })
	if err != nil {
		return err
	}
	defer c.Shutdown()
	p, err := o.producer(topic + "-producer")
	if err != nil {
		return err
	}
	defer p.Shutdown()
	ids := map[string]bool{}
	for i := range 100 {
		answer, err := p.SendSync(context.Background(), textMessage(topic, fmt.Sprintf("sync-%d", i)))
		if err != nil {
			return err
		}
		if answer.Status != primitive.SendOK || len(answer.OffsetMsgID) != 32 {
			return fmt.Errorf("sync answer %v", answer)
		}
		ids[answer.OffsetMsgID] = true
	}
	if len(ids) != 100 {
		return fmt.Errorf("%d different ids", len(ids))
	}
	var answers, failures atomic.Int64
	for i := range 100 {
		err := p.SendAsync(context.Background(), func(_ context.Context, answer *primitive.SendResult, err error) {
			if err != nil || answer.Status != primitive.SendOK {
				failures.Add(1)
			}
			answers.Add(1)
		}, textMessage(topic, fmt.Sprintf("async-%d", i)))
		if err != nil {
			return err
		}
	}
	if err := await("100 answers", func() bool { return answers.Load() == 100 }); err != nil {
		return err
	}
	if failures.Load() != 0 {
		return fmt.Errorf("%d asynchronous sends failed", failures.Load())
	}
	for i := range 100 {
		if err := p.SendOneWay(context.Background(), textMessage(topic, fmt.Sprintf("oneway-%d", i))); err != nil {
			return err
		}
	}
	if err := await("300 messages", func() bool { n, _ := got.counts(); return n == 300 }); err != nil {
		return err
	}
	if _, deliveries := got.counts(); deliveries != 300 {
		return fmt.Errorf("%d deliveries of 300 messages", deliveries)
	}
	return nil
}

// featureBatch: a batch is one request and many messages, each with its own keys, tag and place.
func featureBatch(o options) error {
	topic := o.topic + "-batch"
	if _, err := o.createTopic(topic, 1); err != nil {
		return err
	}
	var lock sync.Mutex
	got := map[string]*primitive.MessageExt{}
	c, err := o.consumer(topic+"-group", topic, "*", func(m *primitive.MessageExt) {
		lock.Lock()
		got[m.GetKeys()] = m
		lock.Unlock()
	})
	if err != nil {
		return err
	}
	defer c.Shutdown()
	p, err := o.producer(topic + "-producer")
	if err != nil {
		return err
	}
	defer p.Shutdown()
	for round := range 3 {
		var messages []*primitive.Message
		for i := range 50 {
			messages = append(messages, textMessage(topic, fmt.Sprintf("batch-%d", 50*round+i)).WithTag(fmt.Sprintf("T%d", i%3)))
		}
		answer, err := p.SendSync(context.Background(), messages...)
		if err != nil {
			return err
		}
		if answer.Status != primitive.SendOK || answer.QueueOffset != int64(50*round) {
			return fmt.Errorf("round %d: %v", round, answer)
		}
	}
	err = await("150 messages", func() bool { lock.Lock(); defer lock.Unlock(); return len(got) == 150 })
	if err != nil {
		return err
	}
	for i := range 150 {
		key := fmt.Sprintf("batch-%d", i)
		m := got[key]
		if m == nil || string(m.Body) != key || m.QueueOffset != int64(i) || m.GetTags() != fmt.Sprintf("T%d", i%50%3) {
			return fmt.Errorf("message %d is %v", i, m)
		}
	}
	return nil
}

// featureTags: only subscribed tags arrive, not even one whose Java hash is the same.
func featureTags(o options) error {
	topic := o.topic + "-tags"
	if _, err := o.createTopic(topic, 4); err != nil {
		return err
	}
	got := newSeen()
	c, err := o.consumer(topic+"-group", topic, "AaAa || red", func(m *primitive.MessageExt) { got.add(m.GetTags() + "/" + m.GetKeys()) })
	if err != nil {
		return err
	}
	defer c.Shutdown()
	all := newSeen()
	c2, err := o.consumer(topic+"-all", topic, "*", func(m *primitive.MessageExt) { all.add(m.GetTags() + "/" + m.GetKeys()) })
	if err != nil {
		return err
	}
	defer c2.Shutdown()
	p, err := o.producer(topic + "-producer")
	if err != nil {
		return err
	}
	defer p.Shutdown()
	want, wantAll := map[string]bool{}, map[string]bool{}
	for i := range 200 {
		tag := []string{"AaAa", "BBBB", "red", "blue"}[i%4]
		if _, err := p.SendSync(context.Background(), textMessage(topic, fmt.Sprint(i)).WithTag(tag)); err != nil {
			return err
		}
		wantAll[fmt.Sprintf("%s/%d", tag, i)] = true
		if tag == "AaAa" || tag == "red" {
			want[fmt.Sprintf("%s/%d", tag, i)] = true
		}
	}
	if err := await("the wanted tags", func() bool { return got.has(want) && all.has(wantAll) }); err != nil {
		return err
	}
	if n, _ := got.counts(); n != len(want) {
		return fmt.Errorf("%d messages for %d wanted", n, len(want))
	}
	return nil
}

// featureAutoTopic: the first send to an unknown name makes the topic.
func featureAutoTopic(o options) error {
	topic := o.topic + "-auto"
	p, err := o.producer(topic + "-producer")
	if err != nil {
		return err
	}
	defer p.Shutdown()
	for i := range 20 {
		answer, err := p.SendSync(context.Background(), textMessage(topic, fmt.Sprint(i)))
		if err != nil {
			return err
		}
		if answer.Status != primitive.SendOK {
			return fmt.Errorf("answer %v", answer)
		}
	}
	got := newSeen()
	c, err := o.consumer(topic+"-group", topic, "*", func(m *primitive.MessageExt) { got.add(m.GetKeys()) })
	if err != nil {
		return err
	}
	defer c.Shutdown()
	return await("20 messages", func() bool { n, _ := got.counts(); return n == 20 })
}

func (o options) pullConsumer(group, topic string) (rocketmq.PullConsumer, error) {
	c, err := rocketmq.NewPullConsumer(
		consumer.WithNsResolver(o.resolver()),
		consumer.WithGroupName(group),
		consumer.WithInstance(instance()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return nil, err
	}
	if err := c.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}); err != nil {
		return nil, err
	}
	return c, c.Start()
}

// featurePull: every status of a pull at an offset; a held pull wakes when the message comes.
func featurePull(o options) error {
	topic := o.topic + "-pull"
	queues, err := o.createTopic(topic, 1)
	if err != nil {
		return err
	}
	p, err := o.producer(topic+"-producer", producer.WithQueueSelector(producer.NewRoundRobinQueueSelector()))
	if err != nil {
		return err
	}
	defer p.Shutdown()
	for i := range 40 {
		if _, err := p.SendSync(context.Background(), textMessage(topic, fmt.Sprint(i))); err != nil {
			return err
		}
	}
	c, err := o.pullConsumer(topic+"-group", topic)
	if err != nil {
		return err
	}
	defer c.Shutdown()
	for _, want := range []struct {
		offset int64
		status primitive.PullStatus
		count  int
		next   int64
	}{
		{0, primitive.PullFound, 32, 32},
		{32, primitive.PullFound, 8, 40},
		{1000, primitive.PullOffsetIllegal, 0, 40},
	} {
		r, err := c.PullFrom(context.Background(), queues[0], want.offset, 32)
		if err != nil {
			return err
		}
		if r.Status != want.status || len(r.GetMessageExts()) != want.count || r.NextBeginOffset != want.next {
			return fmt.Errorf("pull at %d: status %v, %d messages, next %d", want.offset, r.Status, len(r.GetMessageExts()), r.NextBeginOffset)
		}
	}
	failed := make(chan error, 1)
	go func() {
		time.Sleep(500 * time.Millisecond)
		_, err := p.SendSync(context.Background(), textMessage(topic, "late"))
		failed <- err
	}()
	r, err := c.PullFrom(context.Background(), queues[0], 40, 32)
	if err != nil {
		return err
	}
	if err := <-failed; err != nil {
		return err
	}
	if r.Status != primitive.PullFound || len(r.GetMessageExts()) != 1 || r.GetMessageExts()[0].GetKeys() != "late" {
		return fmt.Errorf("held pull: status %v, %d messages", r.Status, len(r.GetMessageExts()))
	}
	return nil
}

// featurePoll: the pull consumer that has its queues assigned, reads and acknowledges.
func featurePoll(o options) error {
	topic := o.topic + "-poll"
	if _, err := o.createTopic(topic, 4); err != nil {
		return err
	}
	p, err := o.producer(topic + "-producer")
	if err != nil {
		return err
	}
	defer p.Shutdown()
	for i := range 100 {
		if _, err := p.SendSync(context.Background(), textMessage(topic, fmt.Sprint(i))); err != nil {
			return err
		}
	}
	c, err := o.pullConsumer(topic+"-group", topic)
	if err != nil {
		return err
	}
	defer c.Shutdown()
	got := newSeen()
	err = await("100 polled messages", func() bool {
		r, err := c.Poll(context.Background(), time.Second)
		if err == nil {
			for _, m := range r.GetMsgList() {
				got.add(m.GetKeys())
			}
			c.ACK(context.Background(), r, consumer.ConsumeSuccess)
		}
		n, _ := got.counts()
		return n == 100
	})
	if err != nil {
		return err
	}
	if _, deliveries := got.counts(); deliveries != 100 {
		return fmt.Errorf("%d deliveries of 100 messages", deliveries)
	}
	return nil
}

// featureResume: a consumer that comes back goes on where its group stopped.
func featureResume(o options) error {
	topic := o.topic + "-resume"
	if _, err := o.createTopic(topic, 4); err != nil {
		return err
	}
	p, err := o.producer(topic + "-producer")
	if err != nil {
		return err
	}
	defer p.Shutdown()
	send := func(prefix string) error {
		for i := range 100 {
			if _, err := p.SendSync(context.Background(), textMessage(topic, fmt.Sprintf("%s-%d", prefix, i))); err != nil {
				return err
			}
		}
		return nil
	}
	first, second := newSeen(), newSeen()
	c, err := o.consumer(topic+"-group", topic, "*", func(m *primitive.MessageExt) { first.add(m.GetKeys()) })
	if err != nil {
		return err
	}
	if err := send("a"); err != nil {
		return err
	}
	if err := await("100 messages", func() bool { n, _ := first.counts(); return n == 100 }); err != nil {
		return err
	}
	time.Sleep(200 * time.Millisecond) // the last call of the listener returns, and with it the last offset is known
	if err := c.Shutdown(); err != nil {
		return err
	}
	if err := send("b"); err != nil {
		return err
	}
	c, err = o.consumer(topic+"-group", topic, "*", func(m *primitive.MessageExt) { second.add(m.GetKeys()) })
	if err != nil {
		return err
	}
	defer c.Shutdown()
	if err := await("100 more", func() bool { n, _ := second.counts(); return n >= 100 }); err != nil {
		return err
	}
	time.Sleep(500 * time.Millisecond)
	second.lock.Lock()
	defer second.lock.Unlock()
	for key := range second.keys {
		if key[0] != 'b' {
			return fmt.Errorf("%s was read twice", key)
		}
	}
	return nil
}

package main

import (
	"context"
	"fmt"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// filters: push consumers get exactly what their SQL92 expressions say, those that came before the messages and those
// that came later.
func filters(o options) (*result, error) {
	const count = 300
	r := newResult()
	if _, err := o.createTopic(o.topic, 4); err != nil {
		return r, err
	}
	wanted := map[string]func(i int) bool{
		"i BETWEEN 100 AND 199":               func(i int) bool { return i >= 100 && i < 200 },
		"kind = 'it''s odd' AND NOT (i > 50)": func(i int) bool { return i%2 == 1 && i <= 50 },
		"price IS NULL OR price > 140.5":      func(i int) bool { return i%5 == 0 || i > 281 },
		"TAGS IN ('A') AND i < 30 OR nothing": func(i int) bool { return i%3 == 0 && i < 30 },
	}
	got := map[string]*seen{}
	number := 0
	start := func(expression string) error {
		all := newSeen()
		got[expression] = all
		number++
		c, err := rocketmq.NewPushConsumer(
			consumer.WithNsResolver(o.resolver()),
			consumer.WithGroupName(fmt.Sprintf("%s-%d", o.group, number)),
			consumer.WithInstance(instance()),
			consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		)
		if err != nil {
			return err
		}
		selector := consumer.MessageSelector{Type: consumer.SQL92, Expression: expression}
		err = c.Subscribe(o.topic, selector, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				all.add(message.GetKeys())
			}
			return consumer.ConsumeSuccess, nil
		})
		if err != nil {
			return err
		}
		return c.Start()
	}
	for expression := range wanted {
		if err := start(expression); err != nil {
			return r, err
		}
	}
	p, err := o.producer(o.group + "-producer")
	if err != nil {
		return r, err
	}
	defer p.Shutdown()
	for i := range count {
		message := textMessage(o.topic, fmt.Sprint(i)).WithTag([]string{"A", "B", "B"}[i%3])
		message.WithProperty("i", fmt.Sprint(i))
		message.WithProperty("kind", []string{"even", "it's odd"}[i%2])
		if i%5 != 0 {
			message.WithProperty("price", fmt.Sprint(float64(i)/2))
		}
		if _, err := p.SendSync(context.Background(), message); err != nil {
			return r, err
		}
	}
	wanted["i > 280"] = func(i int) bool { return i > 280 }
	if err := start("i > 280"); err != nil {
		return r, err
	}
	want := map[string]map[string]bool{}
	for expression, is := range wanted {
		want[expression] = map[string]bool{}
		for i := range count {
			if is(i) {
				want[expression][fmt.Sprint(i)] = true
			}
		}
	}
	err = await("what is wanted", func() bool {
		for expression, keys := range want {
			if !got[expression].has(keys) {
				return false
			}
		}
		return true
	})
	if err != nil {
		return r, err
	}
	time.Sleep(time.Second)
	for expression, keys := range want {
		distinct, _ := got[expression].counts()
		r.expect(expression, distinct, len(keys))
	}
	return r, nil
}

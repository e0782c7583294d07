package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"math/bits"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const (
	roundtripQueues = 8
	smallBytesMax   = 1 << 20
	bigBytesMax     = 39 * (1 << 20) / 10
)

// sizes are log-uniform from 1 B to 1 MiB, `big` of them uniform from 1 to 3.9 MiB.
func sizes(o options) ([]int, int64, error) {
	if o.big > o.count {
		return nil, 0, fmt.Errorf("more big messages than messages")
	}
	random := rand.New(rand.NewSource(o.seed))
	all := make([]int, o.count)
	for i := range all {
		all[i] = int(math.Exp(random.Float64() * math.Log(smallBytesMax)))
	}
	for left := o.big; left > 0; {
		if i := random.Intn(o.count); all[i] < smallBytesMax {
			all[i] = smallBytesMax + random.Intn(bigBytesMax-smallBytesMax)
			left--
		}
	}
	var total int64
	for _, bytes := range all {
		total += int64(bytes)
	}
	if total > o.cap {
		return nil, 0, fmt.Errorf("%d bytes in all, limit %d", total, o.cap)
	}
	return all, total, nil
}

// body is noise for even messages and text that zlib shrinks for odd ones.
func body(seed int64, i, bytes int) []byte {
	out := make([]byte, bytes)
	random := rand.New(rand.NewSource(seed*1_000_003 + int64(i)))
	if i%2 == 0 {
		random.Read(out)
		return out
	}
	for at := range out {
		if at%8 == 0 {
			out[at] = byte('a' + random.Intn(26))
		} else {
			out[at] = out[at-1]
		}
	}
	return out
}

func tagOf(i int) string  { return fmt.Sprintf("tag-%d", i%5) }
func keysOf(i int) string { return fmt.Sprintf("key-%d other-%d", i, i%7) }
func noteOf(i int) string { return fmt.Sprintf("naïve: \"%d\" 消息 😀", i) }

func index(keys string) int {
	first, _, _ := strings.Cut(keys, " ")
	number, found := strings.CutPrefix(first, "key-")
	i, err := strconv.Atoi(number)
	if !found || err != nil {
		return -1
	}
	return i
}

type place struct {
	queue  int
	offset int64
}

// roundtrip is the main job: every message that goes in comes out once, whole, where the broker said it was put.
// The consumer owns all queues before the first send and nobody joins or leaves. Only hashes are kept.
func roundtrip(o options) (*result, error) {
	all, total, err := sizes(o)
	if err != nil {
		return nil, err
	}
	queues, err := o.createTopic(o.topic, roundtripQueues)
	if err != nil {
		return nil, err
	}
	var (
		lock                                     sync.Mutex
		hashes                                   = make([][32]byte, o.count)
		sent                                     = make([]*place, o.count)
		received                                 = make([]*place, o.count)
		warm                                     = map[int]bool{}
		distinct, twice, corrupt, wrong, unknown atomic.Int64
	)
	c, err := o.consumer(o.group, o.topic, "*", func(message *primitive.MessageExt) {
		if message.GetKeys() == "warm" {
			lock.Lock()
			warm[message.Queue.QueueId] = true
			lock.Unlock()
			return
		}
		i := index(message.GetKeys())
		if i < 0 || i >= o.count {
			unknown.Add(1)
			return
		}
		hash := sha256.Sum256(message.Body)
		if message.GetKeys() != keysOf(i) || message.GetTags() != tagOf(i) || message.Topic != o.topic ||
			message.GetProperty("index") != strconv.Itoa(i) || message.GetProperty("note") != noteOf(i) {
			wrong.Add(1)
		}
		lock.Lock()
		defer lock.Unlock()
		if hash != hashes[i] {
			corrupt.Add(1)
		}
		if received[i] != nil {
			twice.Add(1)
			return
		}
		received[i] = &place{message.Queue.QueueId, message.QueueOffset}
		distinct.Add(1)
	})
	if err != nil {
		return nil, err
	}

	// The client does not show its queues: one message through each says that all are owned.
	warmer, err := o.producer(o.group+"-warmer", producer.WithQueueSelector(producer.NewManualQueueSelector()))
	if err != nil {
		return nil, err
	}
	for _, queue := range queues {
		message := primitive.NewMessage(o.topic, []byte("warm")).WithKeys([]string{"warm"})
		message.Queue = queue
		if _, err := warmer.SendSync(context.Background(), message); err != nil {
			return nil, err
		}
	}
	err = await("one message through each queue", func() bool {
		lock.Lock()
		defer lock.Unlock()
		return len(warm) == roundtripQueues
	})
	if err != nil {
		return nil, err
	}

	p, err := o.producer(o.group + "-producer")
	if err != nil {
		return nil, err
	}
	var next, failures atomic.Int64
	var senders sync.WaitGroup
	started := time.Now()
	for range o.threads {
		senders.Add(1)
		go func() {
			defer senders.Done()
			for i := int(next.Add(1)) - 1; i < o.count; i = int(next.Add(1)) - 1 {
				message := primitive.NewMessage(o.topic, body(o.seed, i, all[i]))
				message.WithTag(tagOf(i)).WithKeys(strings.Split(keysOf(i), " "))
				message.WithProperty("index", strconv.Itoa(i))
				message.WithProperty("note", noteOf(i))
				hash := sha256.Sum256(message.Body)
				lock.Lock()
				hashes[i] = hash
				lock.Unlock()
				answer, err := p.SendSync(context.Background(), message)
				if err != nil || answer.Status != primitive.SendOK {
					if failures.Add(1) <= 3 {
						fmt.Fprintln(os.Stderr, "send:", err, answer)
					}
					continue
				}
				lock.Lock()
				sent[i] = &place{answer.MessageQueue.QueueId, answer.QueueOffset}
				lock.Unlock()
			}
		}()
	}
	senders.Wait()
	sentTime := time.Since(started)
	reached(func() bool { return distinct.Load() == int64(o.count) })
	allTime := time.Since(started)
	// A second delivery would come late; give it the chance to be seen.
	time.Sleep(2 * time.Second)

	lock.Lock()
	defer lock.Unlock()
	lost, wrongPlaces := 0, 0
	var seen uint64
	for i := range o.count {
		switch {
		case received[i] == nil:
			lost++
		case sent[i] != nil && *sent[i] != *received[i]:
			wrongPlaces++
		}
		if sent[i] != nil {
			seen |= 1 << sent[i].queue
		}
	}
	r := newResult()
	r.put("sent", o.count)
	r.put("bytes", total)
	r.put("sent_ms", sentTime.Milliseconds())
	r.put("all_ms", allTime.Milliseconds())
	r.expect("received", int(distinct.Load()), o.count)
	r.expect("send_failures", int(failures.Load()), 0)
	r.expect("lost", lost, 0)
	r.expect("twice", int(twice.Load()), 0)
	r.expect("corrupt", int(corrupt.Load()), 0)
	r.expect("wrong_properties", int(wrong.Load()), 0)
	r.expect("wrong_places", wrongPlaces, 0)
	r.expect("unknown", int(unknown.Load()), 0)
	r.expect("queues", bits.OnesCount64(seen), roundtripQueues)
	_ = p.Shutdown()
	_ = warmer.Shutdown()
	_ = c.Shutdown()
	return r, nil
}

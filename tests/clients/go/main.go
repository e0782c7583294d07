// The official Go client as a test program: `clients COMMAND --name value …`.
//
// Every command prints one line `RESULT {json}` and ends with 0 when all it saw was right, 1 when something was
// wrong, 2 when it broke, and 3 when --timeout seconds passed first.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime/pprof"
	"time"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type options struct {
	namesrv string
	broker  string
	topic   string
	group   string
	count   int
	big     int
	threads int
	seed    int64
	cap     int64
}

// result is what a command found; anything not as expected makes it wrong.
type result struct {
	members map[string]any
	wrong   []string
}

func newResult() *result { return &result{members: map[string]any{}} }

func (r *result) put(name string, value any) { r.members[name] = value }

func (r *result) expect(name string, value, want int) {
	r.members[name] = value
	if value != want {
		r.fail(fmt.Sprintf("%s is %d, not %d", name, value, want))
	}
}

func (r *result) fail(why string) { r.wrong = append(r.wrong, why) }

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "roundtrip | features | filters")
		os.Exit(2)
	}
	var o options
	var timeout int
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	flags.StringVar(&o.namesrv, "namesrv", "", "name server, host:port")
	flags.StringVar(&o.broker, "broker", "", "broker, host:port: Go's admin client cannot ask a cluster for its brokers")
	flags.StringVar(&o.topic, "topic", "", "topic, or what the topics' names begin with")
	flags.StringVar(&o.group, "group", "", "consumer group")
	flags.IntVar(&o.count, "count", 2000, "messages")
	flags.IntVar(&o.big, "big", 4, "how many of them are over 1 MiB")
	flags.IntVar(&o.threads, "threads", 4, "sending goroutines")
	flags.Int64Var(&o.seed, "seed", 1, "brings the same messages back")
	flags.Int64Var(&o.cap, "cap", 2<<30, "bytes of all bodies at most")
	flags.IntVar(&timeout, "timeout", 240, "seconds until a hang is ended")
	_ = flags.Parse(os.Args[2:])

	level := os.Getenv("ROCKETMQ_GO_LOG_LEVEL")
	if level == "" {
		level = "fatal"
	}
	rlog.SetLogLevel(level)
	go func() {
		time.Sleep(time.Duration(timeout) * time.Second)
		fmt.Fprintf(os.Stderr, "no end after %d s; where the goroutines are:\n", timeout)
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
		os.Exit(3)
	}()

	var r *result
	var err error
	switch os.Args[1] {
	case "roundtrip":
		r, err = roundtrip(o)
	case "features":
		r, err = features(o)
	case "filters":
		r, err = filters(o)
	default:
		err = fmt.Errorf("unknown command %s", os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	r.members["ok"] = len(r.wrong) == 0
	if len(r.wrong) > 0 {
		r.members["wrong"] = r.wrong
	}
	line, err := json.Marshal(r.members)
	if err != nil {
		panic(err)
	}
	fmt.Println("RESULT " + string(line))
	if len(r.wrong) > 0 {
		os.Exit(1)
	}
}

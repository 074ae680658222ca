package exchange_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/exchange"
)

// looksUnderWay is how many looks at a message there are before it is found.
const looksUnderWay = 4

// crowd lets looks at one message find it all together, and counts how many of them read it.
type crowd struct {
	came    atomic.Int64
	waiting sync.WaitGroup // for looks, and for the message
	settled sync.WaitGroup // for looks that read or that let others read
	reads   atomic.Int64
}

// at returns the board as who looks at the message has it.
func (c *crowd) at(remote exchange.Remote, name string) exchange.Remote {
	c.waiting.Add(looksUnderWay + 1)
	c.settled.Add(looksUnderWay)
	return exchange.Remote{Ask: func(
		ctx context.Context, method, path string, body io.Reader,
	) (*http.Response, error) {
		looks := method == http.MethodGet && strings.HasSuffix(path, "/"+name)
		if looks && c.came.Add(1) > looksUnderWay {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		if looks {
			c.waiting.Done()
			c.waiting.Wait()
		}
		answer, err := remote.Ask(context.WithoutCancel(ctx), method, path, body)
		if looks && err == nil {
			answer.Body = &counted{ReadCloser: answer.Body, crowd: c}
		}
		return answer, err
	}}
}

// counted is the body of the message.
type counted struct {
	io.ReadCloser

	crowd   *crowd
	read    sync.Once
	settled sync.Once
}

func (c *counted) Read(p []byte) (int, error) {
	c.read.Do(func() {
		c.crowd.reads.Add(1)
		c.settled.Do(c.crowd.settled.Done)
		c.crowd.settled.Wait()
	})
	return c.ReadCloser.Read(p)
}

func (c *counted) Close() error {
	c.settled.Do(c.crowd.settled.Done)
	return c.ReadCloser.Close()
}

// posts tells when a message is posted.
type posts struct {
	activities.Board

	name   string
	posted func()
}

func (p posts) Post(ctx context.Context, group, name string, data []byte) (bool, error) {
	first, err := p.Board.Post(ctx, group, name, data)
	if name == p.name {
		p.posted()
	}
	return first, err
}

func TestOneOfTheLooksReadsTheMessage(t *testing.T) {
	t.Parallel()
	const workers, name = 2, "0-part-1"
	files := openFiles(t)
	server := served(t)
	var c crowd
	boards := []activities.Board{c.at(server, name), posts{server, name, sync.OnceFunc(c.waiting.Done)}}
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			ctx, _ := attemptOf(t.Context(), files)
			if _, err := exchange.Train(ctx, exchange.Job{
				Board: boards[i], Group: "group", Worker: i, Workers: workers, Rounds: 1, Pattern: exchange.AllGather,
				Patience: 1 << 40,
			}, newLogistic(1)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if reads := c.reads.Load(); reads != 1 {
		t.Errorf("%d looks have read the message, want one", reads)
	}
}

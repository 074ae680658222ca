package login

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
)

func TestACommandLineWaitsAsLongAsItsCode(t *testing.T) {
	t.Parallel()
	away := fmt.Errorf("%w: connection refused", client.ErrUnreachable)
	starting := &web.Error{Status: http.StatusServiceUnavailable, Message: "starting"}
	refused := &web.Error{Status: http.StatusForbidden, Message: "this command line was refused"}
	pending, made := web.MadeSession{Pending: true}, web.MadeSession{Token: "x"}
	type answer struct {
		from time.Duration // since it began to wait
		made web.MadeSession
		err  error
	}
	for name, c := range map[string]struct {
		answers []answer
		want    error         // nil where it is let in
		at      time.Duration // when it ends
		most    time.Duration // between two questions
	}{
		"at once":           {[]answer{{0, made, nil}}, nil, 2 * time.Second, 2 * time.Second},
		"somebody confirms": {[]answer{{0, pending, nil}, {time.Minute, made, nil}}, nil, time.Minute, 2 * time.Second},
		"somebody refuses": {
			[]answer{{0, pending, nil}, {time.Minute, made, refused}}, refused, time.Minute, 2 * time.Second,
		},
		"it is away for long": {
			[]answer{{0, pending, nil}, {10 * time.Second, made, away}, {5 * time.Minute, made, nil}},
			nil,
			5 * time.Minute, 15 * time.Second,
		},
		"it starts anew, and is asked as often as before then": {
			[]answer{{0, made, starting}, {time.Minute, pending, nil}, {2 * time.Minute, made, nil}},
			nil, 2 * time.Minute,
			15 * time.Second,
		},
		"it is away for good": {
			[]answer{{0, made, away}}, client.ErrUnreachable, 10 * time.Minute, 15 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				last, longest := began, time.Duration(0)
				got, err := await(t.Context(), func(context.Context, string) (web.MadeSession, error) {
					longest, last = max(longest, time.Since(last)), time.Now()
					now := c.answers[0]
					for _, one := range c.answers {
						if time.Since(began) >= one.from {
							now = one
						}
					}
					return now.made, now.err
				}, web.DeviceCode{ExpiresIn: 600, Interval: 2})
				if !errors.Is(err, c.want) || err == nil && got.Token != "x" {
					t.Errorf("got %+v, %v; want %v", got, err, c.want)
				}
				if took := time.Since(began); took < c.at-2*time.Second || took > c.at+15*time.Second {
					t.Errorf("it took %s, want about %s", took, c.at)
				}
				if longest > c.most {
					t.Errorf("it asked after %s, want %s at most", longest, c.most)
				}
			})
		})
	}
}

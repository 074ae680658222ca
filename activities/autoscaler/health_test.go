package autoscaler

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

func TestHealthIsThatWhatIsDecidedIsInForce(t *testing.T) {
	t.Parallel()
	js := stream(t)
	o := options(t, js)
	var broken atomic.Bool
	plans := o.Plans
	o.Plans = &wrapped{PlanStore: plans, replace: func(ctx context.Context, plan predictor.Plan, revision uint64) (uint64,
		error,
	) {
		if broken.Load() {
			return 0, errors.New("no room")
		}
		return plans.Replace(ctx, plan, revision)
	}}
	l := leader(t, o)
	l.lasts = 2 * time.Second
	if err := l.Health(); !errors.Is(err, errNoTerm) {
		t.Errorf("before the first term: %v, want %v", err, errNoTerm)
	}
	lead(t, l)
	eventually(t, "healthy", func() bool { return l.Health() == nil })
	broken.Store(true)
	publish(t, js, scheduled(train, 3)) // there is something to decide
	eventually(t, "says that plans do not come in force", func() bool {
		err := l.Health()
		return err != nil && strings.Contains(err.Error(), "no room")
	})
	broken.Store(false)
	eventually(t, "healthy again", func() bool { return l.Health() == nil })
}

func TestAttackAPlanOfANewerBuildIsSaidByHealth(t *testing.T) {
	t.Parallel()
	js := stream(t)
	l := leader(t, options(t, js))
	l.lasts = 2 * time.Second
	lead(t, l)
	eventually(t, "healthy", func() bool { return l.Health() == nil })
	bucket, err := js.KeyValue(t.Context(), wire.PlanBucket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bucket.PutString(t.Context(), wire.PlanKey, `{"v":99}`); err != nil {
		t.Fatal(err)
	}
	publish(t, js, scheduled(train, 3))
	eventually(t, "says whose plan is in force", func() bool { return errors.Is(l.Health(), wire.ErrVersion) })
	if err := bucket.Delete(t.Context(), wire.PlanKey); err != nil { // what its error asks for
		t.Fatal(err)
	}
	eventually(t, "healthy again", func() bool { return l.Health() == nil })
}

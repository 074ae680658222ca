package main

import (
	"context"
	"runtime"

	"golang.org/x/sync/errgroup"
)

// each is what comes of every case, of which as many are done at once as there are cores. The first error ends it.
func each[T any](ctx context.Context, cases int, do func(context.Context, int) (T, error)) ([]T, error) {
	done := make([]T, cases)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i := range cases {
		group.Go(func() (err error) {
			if err = ctx.Err(); err == nil {
				done[i], err = do(ctx, i)
			}
			return err
		})
	}
	return done, group.Wait()
}

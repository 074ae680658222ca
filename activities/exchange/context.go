package exchange

import "context"

type serverKey struct{}

// WithServer returns a context in which stage code finds a parameter server.
func WithServer(ctx context.Context, server Averager) context.Context {
	return context.WithValue(ctx, serverKey{}, server)
}

// ServerFrom returns the parameter server that this process reaches; false where it reaches none.
func ServerFrom(ctx context.Context) (Averager, bool) {
	server, reached := ctx.Value(serverKey{}).(Averager)
	return server, reached
}

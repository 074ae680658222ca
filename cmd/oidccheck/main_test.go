package oidccheck

import (
	"log/slog"
	"testing"

	"github.com/spillway-ml/spillway/activities/natstest"
)

func TestMain(m *testing.M) {
	natstest.Main()
	slog.SetDefault(slog.New(slog.DiscardHandler)) // where the provider logs each request
	m.Run()
}

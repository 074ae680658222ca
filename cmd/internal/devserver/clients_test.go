package devserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/wire"
)

// startNATSAlone starts NATS without Temporal on a new state directory.
func startNATSAlone(t *testing.T, dir string, logger *slog.Logger) *Server {
	t.Helper()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	keys, err := access.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	n, err := startNATS(t.Context(), Options{Dir: dir, Logger: logger}, keys)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return &Server{nats: n, keys: keys}
}

func TestAttackNATSLetsNobodyInWithoutACredential(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := startNATSAlone(t, t.TempDir(), slog.New(slog.NewTextHandler(&log, nil)))
	for _, build := range []string{"1", "2"} {
		if _, _, err := s.AdmitBuild(wire.App{Name: "app"}, build); err != nil {
			t.Fatal(err)
		}
	}
	keys := s.Keys()
	for _, attack := range []struct {
		name string
		show nats.Option
	}{
		{"nothing", nats.Name("nobody")},
		{"the owner's name", nats.UserInfo(NATSOwner, "")},
		{"a guess", nats.UserInfo(NATSOwner, keys.Token()+"x")},
		{"the token of Prometheus", nats.UserInfo(NATSOwner, keys.MetricsToken())},
		{"that of a build as the owner's", nats.UserInfo(NATSOwner, keys.BuildToken("app@1"))},
		{"that of another build", nats.UserInfo("app@1", keys.BuildToken("app@2"))},
		{"the owner's as that of a build", nats.UserInfo("app@1", keys.Token())},
		{"that of a build without worker", nats.UserInfo("app@3", keys.BuildToken("app@3"))},
		{"the name of a build", nats.UserInfo("app@1", "")},
		{"no name", nats.UserInfo("", keys.Token())},
		{"a bare token", nats.Token("guess")},
	} {
		connection, err := nats.Connect(s.NATSURL(), attack.show)
		if !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("shown %s: got error %v, want %v", attack.name, err, nats.ErrAuthorization)
		}
		if connection != nil {
			connection.Close()
		}
	}
	if log.Len() > 0 {
		t.Errorf("what anybody can cause is logged:\n%s", log.String())
	}
}

func TestWhoHasACredentialConnectsToNATS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := startNATSAlone(t, dir, slog.New(slog.DiscardHandler))
	forBuild, release, err := s.AdmitBuild(wire.App{Name: "app"}, "1")
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(dir, access.NATSFile))
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, access.NATSFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file for the nats command: %v, %v; want mode 0600", info.Mode(), err)
	}
	var tool struct {
		URL, User, Password string
		InboxPrefix         string `json:"inbox_prefix"`
	}
	if err := json.Unmarshal(content, &tool); err != nil {
		t.Fatal(err)
	}
	for name, connect := range map[string]func() (*nats.Conn, error){
		"this process": func() (*nats.Conn, error) { return s.ConnectNATS("test") },
		"a build": func() (*nats.Conn, error) {
			return nats.Connect(forBuild.String())
		},
		"the nats command": func() (*nats.Conn, error) {
			return nats.Connect(tool.URL, nats.UserInfo(tool.User, tool.Password), nats.CustomInboxPrefix(tool.InboxPrefix))
		},
		"the owner": func() (*nats.Conn, error) {
			address, err := url.Parse(s.NATSURL())
			if err != nil {
				return nil, err
			}
			address.User = url.UserPassword(NATSOwner, s.Keys().Token())
			return nats.Connect(address.String())
		},
	} {
		connection, err := connect()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_, err = connection.Request("$JS.API.STREAM.INFO."+wire.ResultStream, nil, time.Minute)
		if err != nil {
			t.Errorf("%s asks for a stream: %v", name, err)
		}
		inbox, err := connection.SubscribeSync(connection.NewInbox())
		if err == nil {
			err = inbox.Unsubscribe()
		}
		if err = errors.Join(err, connection.FlushTimeout(time.Minute), connection.LastError()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		connection.Close()
	}
	release()
}

func TestABuildIsLetInWithoutAWordInTheLogUntilItIsReleased(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := startNATSAlone(t, t.TempDir(), slog.New(slog.NewTextHandler(&log, nil)))
	for range 2 { // again, as a worker that was started again
		address, release, err := s.AdmitBuild(wire.App{Name: "my.app_1-x"}, "0123456789ab")
		if err != nil {
			t.Fatal(err)
		}
		connection, err := nats.Connect(address.String(), nats.MaxReconnects(0))
		if err != nil {
			t.Fatal(err)
		}
		if err := connection.FlushTimeout(time.Minute); err != nil {
			t.Error(err)
		}
		release()
		connection.Close()
		if _, err := nats.Connect(address.String()); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("after it was released: %v, want %v", err, nats.ErrAuthorization)
		}
	}
	if log.Len() > 0 {
		t.Errorf("it is logged:\n%s", log.String())
	}
}

func TestAttackOneClientHasNATSHoldMuch(t *testing.T) {
	t.Parallel()
	s := startNATSAlone(t, t.TempDir(), slog.New(slog.DiscardHandler))
	held, err := s.nats.server.Varz(nil)
	if err != nil {
		t.Fatal(err)
	}
	if held.MaxPending > 32<<20 || held.MaxConn > 8192 {
		t.Errorf("it holds %d bytes that a client does not read, of %d clients", held.MaxPending, held.MaxConn)
	}
	address, release, err := s.AdmitBuild(wire.App{Name: "app"}, "1")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	refused := make(chan error, 1)
	connection, err := nats.Connect(address.String(), nats.ErrorHandler(
		func(_ *nats.Conn, _ *nats.Subscription, err error) {
			select {
			case refused <- err:
			default:
			}
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	for i := range 2 * maxSubscriptions {
		if _, err := connection.SubscribeSync("s." + strconv.Itoa(i)); err != nil {
			break // it was disconnected
		}
	}
	select {
	case err := <-refused:
		if !errors.Is(err, nats.ErrMaxSubscriptionsExceeded) {
			t.Errorf("got %v, want %v", err, nats.ErrMaxSubscriptionsExceeded)
		}
	case <-time.After(time.Minute):
		t.Errorf("it has %d subscriptions", 2*maxSubscriptions)
	}
}

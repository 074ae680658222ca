package engine_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

// signer is a pair of keys of NATS.
type signer struct {
	nkeys.KeyPair

	public string
	seed   []byte
}

func newSigner(t *testing.T, create func() (nkeys.KeyPair, error)) signer {
	t.Helper()
	pair, err := create()
	if err != nil {
		t.Fatal(err)
	}
	public, first := pair.PublicKey()
	seed, second := pair.Seed()
	if err := errors.Join(first, second); err != nil {
		t.Fatal(err)
	}
	return signer{pair, public, seed}
}

// claim encodes claims that by signs.
func claim(t *testing.T, claims jwt.Claims, by signer) string {
	t.Helper()
	text, err := claims.Encode(by)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// operated has a server of NATS trust an operator, with an account that has JetStream, and returns how a user of that
// is let in: the text of a file of credentials.
func operated(t *testing.T, options *server.Options) (credentials string) {
	t.Helper()
	operator, account := newSigner(t, nkeys.CreateOperator), newSigner(t, nkeys.CreateAccount)
	system, user := newSigner(t, nkeys.CreateAccount), newSigner(t, nkeys.CreateUser)
	trusted := jwt.NewOperatorClaims(operator.public)
	trusted.SystemAccount = system.public
	decoded, err := jwt.DecodeOperatorClaims(claim(t, trusted, operator))
	if err != nil {
		t.Fatal(err)
	}
	own := jwt.NewAccountClaims(account.public)
	own.Limits.JetStreamLimits = jwt.JetStreamLimits{
		MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit,
	}
	resolver := &server.MemAccResolver{}
	if err := errors.Join(resolver.Store(account.public, claim(t, own, operator)),
		resolver.Store(system.public, claim(t, jwt.NewAccountClaims(system.public), operator))); err != nil {
		t.Fatal(err)
	}
	options.TrustedOperators, options.SystemAccount = []*jwt.OperatorClaims{decoded}, system.public
	options.AccountResolver = resolver
	options.JsAccDefaultDomain = map[string]string{account.public: ""}
	text, err := jwt.FormatUserConfig(claim(t, jwt.NewUserClaims(user.public), account), user.seed)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// keyed has a server of NATS know a user by an nkey, and returns the text of the file of its seed.
func keyed(t *testing.T, options *server.Options) (credentials string) {
	t.Helper()
	user := newSigner(t, nkeys.CreateUser)
	options.Nkeys = []*server.NkeyUser{{Nkey: user.public}}
	options.JsAccDefaultDomain = map[string]string{server.DEFAULT_GLOBAL_ACCOUNT: ""}
	return string(user.seed) + "\n"
}

// TestAnEngineRunsOnANATSThatKnowsItByAJWTOrAnNkey runs an app on servers that take nothing else, its builds through a
// leaf node, and is refused with what another server would take.
func TestAnEngineRunsOnANATSThatKnowsItByAJWTOrAnNkey(t *testing.T) {
	t.Parallel()
	app := buildApp(t, 0)
	for name, let := range map[string]func(*testing.T, *server.Options) string{
		"a JWT of an operator": operated, "an nkey": keyed,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			_, port, _ := net.SplitHostPort(listener.Addr().String())
			if err := listener.Close(); err != nil {
				t.Fatal(err)
			}
			leaf, err := strconv.Atoi(port)
			if err != nil {
				t.Fatal(err)
			}
			options := &server.Options{
				ServerName: "somebody's", Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
				JetStream: true, StoreDir: t.TempDir(), MaxPayload: 8 << 20,
				LeafNode: server.LeafNodeOpts{Host: "127.0.0.1", Port: leaf},
			}
			credentials := let(t, options)
			s, err := server.NewServer(options)
			if err != nil {
				t.Fatal(err)
			}
			s.Start()
			t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
			if !s.ReadyForConnections(patience) {
				t.Fatal("the server of NATS is not ready")
			}
			file := filepath.Join(t.TempDir(), "credentials")
			write := func(text string) {
				t.Helper()
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			flags := []string{
				"--no-burst", "--nats-url", s.ClientURL(), "--nats-leaf-url", "nats://127.0.0.1:" + port, "--nats-credentials",
				file,
			}
			write(let(t, &server.Options{})) // of somebody else
			if said := refusesToStart(t, t.TempDir(), flags...); !strings.Contains(said, "--nats-credentials") ||
				!strings.Contains(said, file) || strings.Contains(said, "seed") {
				t.Errorf("with the credentials of another server: %s", said)
			}
			write(credentials)
			e := startEngine(t, t.TempDir(), app, flags...)
			succeed[fanResult](e, e.publish("fan", "a", fanInput{Shards: 3, Milliseconds: 10}), patience).check(t, 3)
			e.stop()
		})
	}
}

package devserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/temporalio/ui-server/v2/server/api"
	uiconfig "github.com/temporalio/ui-server/v2/server/config"
	"github.com/temporalio/ui-server/v2/server/csrf"
	"github.com/temporalio/ui-server/v2/server/headers"
	"github.com/temporalio/ui-server/v2/server/route"
	"github.com/temporalio/ui-server/v2/ui"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"

	"github.com/spillway-ml/spillway/activities/access"
)

// uiDrain is how long Close waits for the UI's running requests, which read only.
const uiDrain = time.Second

// uiServer is Temporal's web UI. It is put together here from the UI's own parts, because its ready-made server exits
// the process when it cannot listen, keeps its connection to Temporal after it is stopped, and can be made to ask
// GitHub for new releases.
type uiServer struct {
	url      string
	listener net.Listener
	server   *http.Server  // nil before serve
	done     chan struct{} // closed when server has ended
	conn     io.Closer     // to Temporal
}

// uiSettings is the configuration of the UI; it is its own provider.
type uiSettings uiconfig.Config

// GetConfig implements the UI's ConfigProvider.
func (s *uiSettings) GetConfig() (*uiconfig.Config, error) { return (*uiconfig.Config)(s), nil }

// listenUI takes o.UIPort. Whoever connects waits for serve.
func listenUI(ctx context.Context, o Options) (*uiServer, error) {
	l, err := listen(ctx, o.UIPort)
	if err != nil {
		return nil, &PortError{Name: "ui-port", Port: o.UIPort, Err: err}
	}
	return &uiServer{url: "http://" + l.Addr().String(), listener: l, done: make(chan struct{})}, nil
}

// serve serves the UI of the Temporal server at address to the owner. The guard takes the browser's Authorization
// header away, with which a page would pass the UI's own check of forged requests; the UI's connection has the token.
func (u *uiServer) serve(address string, keys *access.Keys, o Options) error {
	conn, err := gate{keys}.dial(address, o.UIDial...)
	if err != nil {
		return fmt.Errorf("start the web UI: %w", err)
	}
	u.conn = conn
	handler, err := uiHandler(address, conn)
	if err != nil {
		return errors.Join(fmt.Errorf("start the web UI: %w", err), conn.Close())
	}
	guard := &access.Guard{Keys: keys}
	u.server = access.NewServer(guard.Wrap(handler), o.Logger)
	go func() {
		defer close(u.done)
		if err := u.server.Serve(u.listener); !errors.Is(err, http.ErrServerClosed) {
			o.Logger.Error("temporal web ui ended", "error", err)
		}
	}()
	return nil
}

// uiHandler is the UI with its API, which asks Temporal through conn. The address is for the UI to show.
func uiHandler(address string, conn *grpc.ClientConn) (http.Handler, error) {
	provider, err := uiconfig.NewConfigProviderWithRefresh(&uiSettings{
		TemporalGRPCAddress: address,
		DefaultNamespace:    Namespace,
		EnableUI:            true,
		DisableNewsFetch:    true,
		HideLogs:            true,
	})
	if err != nil {
		return nil, err
	}
	assets, err := ui.Assets()
	if err != nil {
		return nil, err
	}
	if assets, err = fs.Sub(assets, "local"); err != nil {
		return nil, err
	}
	e := echo.New()
	e.Logger.SetOutput(io.Discard)
	const plainHTTP = false // the CSRF cookie must not ask for TLS
	e.Use(middleware.Recover(), middleware.Gzip(), middleware.Secure(),
		csrf.EnsureTokenCookie(plainHTTP), middleware.CSRFWithConfig(csrf.MiddlewareConfig(provider, plainHTTP)))
	route.SetHealthRoute(e)
	route.SetRenderRoute(e, "/")
	if err := route.SetUIRoutes(e, "", assets, provider); err != nil {
		return nil, err
	}

	through := []api.Middleware{headers.WithForwardHeaders([]string{"Caller-Type"})}
	g := e.Group("/api/v1")
	g.GET("/settings", api.GetSettings(provider))
	g.GET("/ui-extensions", api.GetUIExtensions(provider, api.TemporalAccessCheck(conn, through)))
	g.GET(api.WorkflowRawHistoryUrl, api.WorkflowRawHistoryHandler(workflowservice.NewWorkflowServiceClient(conn)))
	g.Match([]string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}, "/*",
		api.TemporalAPIHandler(provider, through, conn))
	return e, nil
}

// stop lets running requests end, for a short while, and drops the connection to Temporal.
func (u *uiServer) stop(ctx context.Context) error {
	if u.server == nil {
		return u.listener.Close()
	}
	drain, cancel := context.WithTimeout(ctx, uiDrain)
	defer cancel()
	if err := u.server.Shutdown(drain); err != nil {
		_ = u.server.Close() // the drain is over: what is left is cut off
	}
	<-u.done
	if err := u.conn.Close(); err != nil {
		return fmt.Errorf("stop the web UI: %w", err)
	}
	return nil
}

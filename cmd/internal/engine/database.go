package engine

import (
	"context"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
)

// LedgerURL reads the URL of the ledger's database from a file, which must be one that others cannot read: there is a
// password in it. The group may where root is its owner, as libpq has it for keys, and as volumes of secrets are.
func LedgerURL(file string) (string, error) {
	opened, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe nobody writes to holds nobody up
	if err != nil {
		return "", fmt.Errorf("read the URL of the ledger's database: %w", err)
	}
	defer func() { _ = opened.Close() }() // it was only read
	info, err := opened.Stat()
	if err != nil {
		return "", fmt.Errorf("read the URL of the ledger's database: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no file: give one, since it is read again for each connection", file)
	}
	others := os.FileMode(0o077)
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && owner.Uid == 0 {
		others = 0o027
	}
	if info.Mode()&others != 0 {
		return "", fmt.Errorf("%s can be read or changed by others, and has a password: chmod 600 %s", file, file)
	}
	const most = 4096
	text, err := io.ReadAll(io.LimitReader(opened, most+1))
	if err != nil {
		return "", fmt.Errorf("read the URL of the ledger's database: %w", err)
	}
	if len(text) > most {
		return "", fmt.Errorf("%s is no file with the URL of a database: it has more than %d bytes", file, most)
	}
	return string(text), nil
}

// openDatabase opens the ledger where that is in a database of somebody else's; nil where it is in a file. It comes
// before anything is started: what is wrong about an address is said at once.
func openDatabase(ctx context.Context, life *lifecycle, config *Config) (*ledgerstore.Store, error) {
	if config.Ledger == "" {
		return nil, nil //nolint:nilnil // it is in a file then
	}
	url := func() (string, error) { return LedgerURL(config.Ledger) }
	ledger, err := ledgerstore.OpenPostgres(ctx, url, &ledgerstore.Options{
		Led: true, Deposed: life.lead.deposed, Logger: life.logger,
	})
	if err != nil {
		return nil, err
	}
	life.onClose("the ledger", func(context.Context) error { return ledger.Close() })
	if _, err := os.Stat(ledgerstore.Path(config.StateDir)); err == nil && ledger.Cursor() == 0 {
		life.logger.WarnContext(ctx, "the ledger in PostgreSQL is empty, and the state directory has one in a file: "+
			"spillway ledger copy takes over what that has", "ledger", ledger.String())
	}
	return ledger, nil
}

import { svelte } from '@sveltejs/vite-plugin-svelte';
import { existsSync, readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { defineConfig } from 'vitest/config';

// The engine that `npm run dev` passes requests on to; the page itself is served by Vite.
const engine = process.env.SPILLWAY_ENGINE ?? 'http://127.0.0.1:7474';
// Its credential, by which the proxy is its owner: the browser that is shown the page of Vite needs none.
const home = process.env.XDG_STATE_HOME ?? join(homedir(), '.local', 'state');
const state = process.env.SPILLWAY_STATE ?? join(home, 'spillway');
const token = join(state, 'keys', 'token');
const authorization = existsSync(token) ? { authorization: 'Bearer ' + readFileSync(token, 'utf8').trim() } : {};

export default defineConfig({
  plugins: [svelte()],
  server: {
    host: '127.0.0.1',
    // The engine refuses the pages of other origins, so that the proxy speaks as one of its own.
    proxy: { '/api': { target: engine, changeOrigin: true, headers: { origin: engine, ...authorization } } },
  },
  build: {
    outDir: '../dist',
    emptyOutDir: true,
    target: 'es2022',
    assetsInlineLimit: 0, // the content security policy allows no data: addresses
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
  },
  test: { include: ['src/**/*.test.ts'], environment: 'node', css: true }, // the colours are tested as they are written
});

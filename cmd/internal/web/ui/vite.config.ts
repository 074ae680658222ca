import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vitest/config';

// The engine that `npm run dev` passes requests on to; the page itself is served by Vite.
const engine = process.env.SPILLWAY_ENGINE ?? 'http://127.0.0.1:7474';

export default defineConfig({
  plugins: [svelte()],
  server: {
    host: '127.0.0.1',
    // The engine refuses the pages of other origins, so that the proxy speaks as one of its own.
    proxy: { '/api': { target: engine, changeOrigin: true, headers: { origin: engine } } },
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

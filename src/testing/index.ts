export { FakeBackend } from "./fake-backend.js";
export type { FakeBackendOptions, FakeModel, FakeStep } from "./fake-backend.js";
export { Gate } from "./gate.js";

-- Start-time fair queueing (Goyal, Vin, Cheng 1996) among the queues that wait at one priority level.
-- Defines functions for claim.lua; reads no KEYS or ARGV.
-- The queues form a tree: tenants, their compile keys, the queues of those. So nobody gains by using many
-- queues. Each node has a virtual time, which grows by images / weight whenever it is served; the node with
-- the smallest one is served next. `clock` of a parent is the virtual time at which its last child was
-- served: a node that is new, or back from a pause, starts there, with neither debt nor credit.
-- Accounts last from claim to claim: {time, clock of the children, children = {name -> account}}. An account
-- inside a tenant stays packed as JSON until it is needed: of a thousand tenants few are in one batch.
-- Anybody may invent tenants, and Redis serves nobody else during a claim. So only the accounts with the most
-- debt are kept.
local TREE_LEVELS = {'tenant', 'group', 'name'}  -- fields of a queue

local MAX_ACCOUNTS = 512  -- accounts of tenants that a level may have; the half with the most debt stays

-- Of nodes with the same time the first by name is served. But if a claim did not look at all tenants, some
-- accounts may be lost, and the same names would be first again: then chance decides.
local ties_by_chance = false

-- From now on chance decides ties, differently for each `seed`. Redis seeds math.random alike for each script.
local function decide_ties_by_chance(seed)
  ties_by_chance = true
  math.randomseed(tonumber(string.sub(redis.sha1hex(seed), 1, 7), 16))
end

-- Return a node without queues. `left` counts its messages.
local function new_node(parent, name, account)
  return {
    name = name, order = ties_by_chance and math.random() or name,
    parent = parent, account = account, depth = parent and parent.depth + 1 or 1, left = 0,
    time = parent and math.max(account.time or 0, parent.account.clock or 0), queues = {},
  }
end

local function add_queue(node, queue)
  node.queues[#node.queues + 1] = queue
  node.left = node.left + queue.left
end

-- Return the root of the tree of those `queues` that hold messages.
local function build_root(queues, account)
  local root = new_node(nil, '*', account)
  for _, queue in ipairs(queues) do
    if queue.left > 0 then add_queue(root, queue) end
  end
  return root
end

local function unpack_account(account)
  if not account.packed then return end
  local inner = cjson.decode(account.packed)
  account.clock, account.children, account.packed = inner.clock, inner.children, nil
end

local function pack_account(account)
  if not account.children then return end
  account.packed = cjson.encode({clock = account.clock, children = account.children})
  account.clock, account.children = nil, nil
end

-- Restore the heap below `at`. The first child has the smallest time; of equal ones that with the first `order`.
local function sift_down(heap, at)
  local first = at
  for child = 2 * at, 2 * at + 1 do
    local one, other = heap[child], heap[first]
    if one and (one.time < other.time
        or (one.time == other.time and one.order < other.order)) then first = child end
  end
  if first ~= at then
    heap[at], heap[first] = heap[first], heap[at]
    sift_down(heap, first)
  end
end

-- Return the children of a node as a heap. Only a node that is served needs them.
local function build_children(node)
  unpack_account(node.account)
  local heap, by_name, accounts = {}, {}, node.account.children or {}
  for _, queue in ipairs(node.queues) do
    local name = queue[TREE_LEVELS[node.depth]]
    local child = by_name[name]
    if not child then
      child = new_node(node, name, accounts[name] or {})
      heap[#heap + 1], by_name[name] = child, child
    end
    add_queue(child, queue)
  end
  for at = math.floor(#heap / 2), 1, -1 do sift_down(heap, at) end
  return heap
end

-- Return the leaf (one queue) that is served next.
local function next_leaf(node)
  if node.depth > #TREE_LEVELS then return node end
  node.children = node.children or build_children(node)
  return next_leaf(node.children[1])
end

-- Restore the heap of `node` after its first child gave a message, perhaps its last one.
local function update_heap(node)
  local heap = node.children
  if heap[1].left == 0 then
    local last = table.remove(heap)
    if not heap[1] then return end
    heap[1] = last
  end
  sift_down(heap, 1)
end

-- Charge `cost` to the leaf that gave a message, and to its parents. `advance_clock`: no other queue was
-- eligible, so none was passed over because its compile key differs from that of the batch.
local function charge(node, cost, advance_clock)
  node.queues[1].left = node.queues[1].left - 1
  node.left = node.left - 1
  while node.parent do
    local parent, account = node.parent, node.account
    if advance_clock then parent.account.clock = node.time end
    node.time = node.time + cost
    account.time = node.time
    parent.account.children = parent.account.children or {}
    parent.account.children[node.name] = account
    update_heap(parent)
    node, parent.left = parent, parent.left - 1
  end
end

-- Remove the accounts that equal those of new nodes.
local function prune(account)
  for name, child in pairs(account.children) do
    if child.children then prune(child) end
    if not (child.children or child.packed) and child.time <= (account.clock or 0) then
      account.children[name] = nil
    end
  end
  if not next(account.children) then account.children, account.clock = nil, nil end
end

-- Remove the accounts of the tenants with the least debt if there are too many. The clock moves to the last
-- of their times, so that none of them gains by it.
local function limit_accounts(account)
  local times = {}
  for _, child in pairs(account.children) do times[#times + 1] = child.time end
  if #times <= MAX_ACCOUNTS then return end
  table.sort(times)
  account.clock = math.max(account.clock or 0, times[#times - MAX_ACCOUNTS / 2])
  for name, child in pairs(account.children) do
    if child.time <= account.clock then account.children[name] = nil end
  end
end

-- Shrink the account of a level to what the next claim needs. Of tenants that are not `present` only the
-- debt is kept: they may never return.
local function compact(account, present)
  if not account.children then return end
  for tenant, child in pairs(account.children) do
    if not present[tenant] then child.packed, child.clock, child.children = nil, nil, nil end
  end
  limit_accounts(account)
  prune(account)
  for _, child in pairs(account.children or {}) do pack_account(child) end
end

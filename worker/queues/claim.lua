-- Claim messages for one batch and record the worker as their holder. Levels have strict priority; inside a
-- level queues take turns (fair_queueing.lua), and inside a queue like step counts go together
-- (step_affinity.lua). known_queues.lua says which queues a claim looks at. The first message decides the compile key of the batch. A suspect is claimed alone, by
-- a worker that holds nothing else: if this worker dies, no other message counts the death.
-- KEYS 1 claims of this worker (hash: tag -> list \0 message)   2 leases (sorted set: worker -> expiry)
--      3 deliveries (hash: sha1 of message -> count)
--      4 known queues (set of names)   5 weights of tenants (hash)
-- ARGV 1 request, as JSON:
--        claim_number   used in the tags. The worker counts it: a failover may roll back what is in Redis.
--        worker         name of the worker
--        groups         queue -> compile key; also queues of tenants that the worker names itself
--        add_ons        names of the add-ons that the worker holds
--        wanted_images  free slots of the batch
--        max_messages   messages that may be claimed
--        suspect_from   delivery from which on a message is suspect
--        idle           whether this worker holds nothing else
--        default_steps  steps of a message that names none
--        batch_steps    most steps among the jobs that are in the batch already, 0 if there are none
--        max_message_bytes  a message that is longer is returned cut
--        lease_s        seconds that the lease lasts from a claim on which brings messages; missing: as long as before
--      2 accounts by level, as JSON: what this script returned last time, {} at first
-- Returns {accounts as JSON, {{tag, list, message, delivery, 1 if it is cut else 0}, …}, workers that have a lease},
-- or false if this worker has none: it must acquire one first.
local request, accounts = cjson.decode(ARGV[1]), cjson.decode(ARGV[2])
for _, at in ipairs({1, 3, 5}) do set_aside_unless('hash', KEYS[at]) end  -- what is claimed must be recorded
if not redis.call('ZSCORE', KEYS[2], request.worker) then return false end
local any_redelivered = redis.call('HLEN', KEYS[3]) > 0
local claimed, image_count, group, finished = {}, 0, nil, false

-- Return the number that the next delivery of a message has.
local function delivery_of(message)
  local before = any_redelivered and redis.call('HGET', KEYS[3], redis.sha1hex(message))
  return (tonumber(before) or 0) + 1
end

local batch = {
  wanted_images = request.wanted_images, default_steps = request.default_steps,
  steps = request.batch_steps, windows = {},
  is_suspect = function(message) return delivery_of(message) >= request.suspect_from end,
}

local queues, tenants = {}, {['']=true}
local function add_candidate(name, queue_group, tenant, weight, urgent)
  queues[#queues + 1] = {
    name = name, group = queue_group, tenant = tenant, weight = weight, urgent = urgent, empty_levels = 0}
end
local MIN_WEIGHT, MAX_WEIGHT = 1e-6, 1e6  -- with others the accounts could not be stored as JSON
local any_weights = redis.call('EXISTS', KEYS[5]) == 1
local function weight_of(tenant)
  local weight = tonumber(any_weights and redis.call('HGET', KEYS[5], tenant) or 1) or 1
  return weight > 0 and math.min(math.max(weight, MIN_WEIGHT), MAX_WEIGHT) or 1
end
for name, queue_group in pairs(request.groups) do add_candidate(name, queue_group, '', weight_of('')) end
local held_add_ons = {}
for _, name in ipairs(request.add_ons) do held_add_ons[name] = true end
local function holds_add_ons_of(name)
  for add_on in string.gmatch(string.match(name, '^[^@]*'), '&([^&]*)') do
    if not held_add_ons[add_on] then return false end
  end
  return true
end
local function add_known_queue(name, urgent)
  local tenant, queue_group = tenant_of(name), request.groups[string.match(name, '^[^@&]*')]
  if tenant then tenants[tenant] = true end
  if not queue_group or request.groups[name] or not holds_add_ons_of(name) then return false end
  add_candidate(name, queue_group, tenant or '', weight_of(tenant or ''), urgent)
  return true
end
local all_seen = read_known_queues(KEYS[4], accounts, request.wanted_images, add_known_queue)
if not all_seen then
  tenants = {}  -- too many to keep more than their debts
  decide_ties_by_chance(request.worker .. request.claim_number)
end

-- Claim the next message of a list. Return its number of images, or nil if it is a suspect that must wait.
local function claim_from(list)
  local message = pop_message(list, batch)
  local delivery = delivery_of(message)
  if delivery >= request.suspect_from then
    finished = true
    if #claimed > 0 or not request.idle then
      requeue_message(list, message)
      return nil
    end
  end
  local tag = string.format('%d.%06d', request.claim_number, #claimed)
  redis.call('HSET', KEYS[1], tag, list .. '\0' .. message)
  local cut = #message > request.max_message_bytes
  claimed[#claimed + 1] =
    {tag, list, string.sub(message, 1, request.max_message_bytes), delivery, cut and 1 or 0}
  batch.steps = math.max(batch.steps, steps_of(message, batch))
  return math.max(1, header(message, 'images') or 1)
end

local function note_urgency(queue)
  if queue.urgent == nil or queue.urgent == (queue.left > 0) then return end
  redis.call(queue.urgent and 'SREM' or 'SADD', urgent_queues(KEYS[4]), queue.name)
end

local function root_of_level(level)
  for _, queue in ipairs(queues) do
    local length = redis.pcall('LLEN', queue.name .. level)  -- a key of another type holds no messages
    if type(length) ~= 'number' then
      end_unless_readable(length)
      length = 0
    end
    queue.left = length
    if queue.left == 0 then queue.empty_levels = queue.empty_levels + 1 end
    if level == URGENT and not all_seen then note_urgency(queue) end
  end
  return build_root(queues, accounts[level])
end

-- Return the tree of the queues that can share the batch, and whether there are no others.
local function restrict_to_group(root)
  local fitting, others = {}, 0
  for _, queue in ipairs(root.queues) do
    if not group or queue.group == group then
      fitting[#fitting + 1] = queue
    else
      others = others + queue.left
    end
  end
  batch.list_count = #fitting
  if others == 0 then return root, true end
  return build_root(fitting, root.account), false
end

local function serve(level)
  local root, advance_clock = restrict_to_group(root_of_level(level))
  while root.left > 0 and not finished do
    local leaf = next_leaf(root)
    local queue = leaf.queues[1]
    local images = claim_from(queue.name .. level)
    if images then
      charge(leaf, images / queue.weight, advance_clock)
      image_count = image_count + images
      if not group then
        group = queue.group
        root, advance_clock = restrict_to_group(root)
      end
      finished = finished
        or image_count >= request.wanted_images or #claimed >= request.max_messages
    end
  end
  compact(accounts[level], tenants)
end

for _, level in ipairs(LEVELS) do
  if finished then break end
  accounts[level] = accounts[level] or {}
  serve(level)
end
for _, queue in ipairs(queues) do
  if queue.empty_levels == #LEVELS then forget_queue(KEYS[4], queue.name) end
end
if request.lease_s and #claimed > 0 then
  redis.call('ZADD', KEYS[2], redis.call('TIME')[1] + request.lease_s, request.worker)
end
return {cjson.encode(accounts), claimed, redis.call('ZCARD', KEYS[2])}
